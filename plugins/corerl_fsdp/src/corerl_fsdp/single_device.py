"""Training strategy ``torch``: one model on one device."""

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective, ObjectiveOutput
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import NonFiniteError
from corerl.files import reading_file
from corerl.models import compute_dtype
from corerl_fsdp.mixture import load_balance, prepare, shares_prefixes
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.recomputing import recompute_activations
from corerl_fsdp.start_check import settle
from corerl_fsdp.token_model import TokenModel, stored
from corerl_torch import bitwise, contents, lora, loss_scale
from corerl_torch.average import Average, check_average, kept
from corerl_torch.experts.balance import LoadBalance, alone, with_balance
from corerl_torch.host_memory import moved
from corerl_torch.loading import load_model, model_shape
from corerl_torch.loss_scale import LossScale
from corerl_torch.media import freeze_tower
from corerl_torch.micro_batches import micro_batches
from corerl_torch.optimizer import (
    build_optimizer,
    check_optimizer,
    clip_gradients,
    exceeds,
    gradient_norm,
    move_state,
    restore_optimizer,
    set_rates,
)
from corerl_torch.outputs import Columns
from corerl_torch.rounding import RoundingLoss
from corerl_torch.schedules import build_schedule, restore_schedule
from corerl_torch.stepping import ModelWeights
from corerl_torch.sums import Numbers, Sums
from corerl_torch.tokenizers import load_tokenizer
from corerl_torch.weights import as_in_files, saved_buffers

AVERAGE = "average.safetensors"
"""of a checkpoint: the averaged weights"""


class SingleDeviceStrategy:
    """One model on one device; trained weights are float32, compute is in ``model.dtype`` (autocast)."""

    data_parallel_rank = 0
    data_parallel_size = 1

    def __init__(self, spec: StrategySpec, options: TorchOptions | None = None) -> None:
        self.spec, self.rounding, self.loss_scale = spec, RoundingLoss(), LossScale.of(spec)
        options = self.options = options or TorchOptions()
        lora.check_export(spec, options.lora_export)
        if options.bitwise:
            bitwise.check(spec.model, spec.device, on_cuda=False)  # autocast keeps hidden states in float32
        self.compute_dtype = compute_dtype(spec.model, spec.device)
        dtype = lora.weights_dtype(spec)
        self.model = load_model(spec.model, spec.head, device=spec.device, dtype=dtype, seed=spec.seed)
        if lora.enabled(spec):
            lora.add(self.model, spec)
        elif options.freeze_vision_tower and spec.head == "lm":
            freeze_tower(self.model, "actor.strategy.freeze_vision_tower")
        prepare(self.model, spec, options)
        self.token_model = TokenModel(
            self.model,
            spec,
            use_remove_padding=options.use_remove_padding,
            share_prefixes=shares_prefixes(options),
            logits_chunk_size=options.logits_chunk_size,
            compiled=options.compile,
            bitwise=options.bitwise,
            fp8=options.fp8,
            offloads=options.activation_offload,
        ).train(spec.optim is not None)
        self.average: Average | None = None
        settle(self.token_model, self._forward, spec)
        self.balance = load_balance(self.token_model, options)
        if spec.optim is None:
            self.model.requires_grad_(False)
            return
        if options.ema_decay is not None and spec.head == "lm":
            self.average = Average(self.model, options.ema_decay)
        recompute_activations(self.model, options, spec.model)
        self.optimizer = build_optimizer(self.model, spec.optim)
        self.schedule = build_schedule(self.optimizer, spec.optim, spec.total_steps)
        if (begins := contents.initial(options, contents.role_of(spec.head))) is not None:
            self._take(begins, contents.of_initial(options))

    @torch.no_grad()
    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        columns = Columns(batch.response_mask.shape)
        for rows in self._cuts(batch):
            columns.add(rows, self._forward(batch.select(rows), wanted))
        return columns.outputs()

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        numbers = self.accumulate(mini_batch, objective)
        parameters = list(self.model.parameters())
        total = gradient_norm(parameters)
        norm = float(total)
        if exceeds(norm, self.spec.grad_clip):
            clip_gradients(parameters, self.spec.grad_clip, total)
        overflowed = self.loss_scale.overflowed(numbers.loss, norm)
        of_scale = self.loss_scale.metrics(overflowed=overflowed)
        if overflowed:
            self.optimizer.zero_grad(set_to_none=True)
            return numbers.means(lr=float(self.schedule.get_last_lr()[0]), **of_scale)
        if not (math.isfinite(numbers.loss) and math.isfinite(norm)):
            raise self._nonfinite(numbers.loss, norm, mini_batch, objective)
        lr, load = self._step(), self.balance.finish(alone) if self.balance else {}
        return numbers.means(grad_norm=norm, lr=lr, **of_scale, **load)

    def accumulate(self, mini_batch: Experience, objective: Objective) -> Numbers:
        """See :class:`corerl_torch.stepping.SteppedStrategy`."""
        sums = Sums()
        if self.average is not None:
            self.token_model.averaged = self.average.outside_body(lambda weight: weight)
        cuts, balance = self._cuts(mini_batch), self.balance
        if balance is not None:
            balance.prepare(mini_batch, lambda: self._count(mini_batch, cuts), alone, counts_rows=True)
        with self.loss_scale.scaled(self.model.parameters()) as scale:
            for rows in cuts:
                output = self._objective(objective, mini_batch.select(rows), balance)
                (with_balance(output.loss, balance) * scale).backward()
                sums.add(output)
        return sums.numbers()

    def trained_weights(self) -> ModelWeights:
        return ModelWeights(self.model, self.optimizer)

    @torch.no_grad()
    def _count(self, mini_batch: Experience, cuts: Iterable[Tensor]) -> None:
        """A forward pass whose choices of experts are counted."""
        for rows in cuts:
            self._forward(mini_batch.select(rows), (), balance=self.balance)

    def shape(self) -> ModelShape:
        return model_shape(self.model, self.spec.device)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        return itertools.chain(self.rounding.stream(self._weights, dtype), saved_buffers(self.model))

    def measured(self) -> dict[str, float]:
        return self.rounding.metrics()

    def _weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        return as_in_files(self.model.config, lora.merged(self.model, lora.cast, dtype))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        with kept(self.average).swapped():
            yield

    def adapters(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        return self.rounding.stream(lambda dtype: lora.apart(self.model, lora.flat, dtype), dtype)

    def base(self, limit: MicroBatching) -> AbstractContextManager[None]:
        return lora.base(self, limit)

    def offload(self) -> None:
        self._move("cpu")

    def onload(self) -> None:
        self._move(self.spec.device)

    def save(self, folder: Path) -> Callable[[], None]:
        weights = {name: _copied(tensor) for name, tensor in stored(self.model)}
        optimizer, schedule = self.optimizer.state_dict(), dict(self.schedule.state_dict())
        optimizer["state"] = {
            number: {name: _copied(value) for name, value in values.items()}
            for number, values in optimizer["state"].items()
            if self.options.save_optimizer
        }

        scale = self.loss_scale.state() if self.loss_scale.enabled else ""
        averages = {} if self.average is None else {name: _copied(each) for name, each in self.average.values.items()}

        def write() -> None:
            if averages:
                save_file(averages, folder / AVERAGE)
            save_file(weights, folder / "weights.safetensors")
            lora.note(folder, self.spec)
            if scale:
                (folder / loss_scale.FILE).write_text(scale)
            kept = {"optimizer": optimizer} if self.options.save_optimizer else {}
            with (folder / "optimizer.pt").open("wb") as file:  # by its name, torch loses the error of the disk
                torch.save({**kept, "schedule": schedule}, file)

        return write

    def load(self, folder: Path) -> None:
        self._take(folder, contents.of_resumed(self.options))

    def _take(self, folder: Path, parts: Collection[str]) -> None:
        """Load parts of a checkpoint."""
        if contents.MODEL in parts:
            self._take_model(folder)
        if contents.EXTRA in parts:
            self.loss_scale.load(folder)
        with reading_file(folder / "optimizer.pt") as file:
            state = torch.load(file, map_location="cpu", weights_only=True)  # the optimizer moves its parts
            if contents.OPTIMIZER in parts:
                assert self.spec.optim is not None
                restore_optimizer(self.optimizer, check_optimizer(folder, state)["optimizer"], self.spec.optim)
            if contents.EXTRA in parts:
                restore_schedule(self.schedule, state["schedule"])
        set_rates(self.optimizer, self.schedule)

    def _take_model(self, folder: Path) -> None:
        lora.check_stored(folder, self.spec)
        with reading_file(folder / "weights.safetensors") as file, torch.no_grad():
            _fill(stored(self.model), load_file(file, device=self.spec.device))
        if self.average is not None:
            check_average(folder, (folder / AVERAGE).exists())
            with reading_file(folder / AVERAGE) as file, torch.no_grad():
                _fill(self.average.values.items(), load_file(file))

    def export(self, folder: Path) -> None:
        if lora.enabled(self.spec) and self.options.lora_export == "adapter":
            adapters = {name: each.detach().cpu() for name, each in lora.trained(self.model)}
            lora.write_adapter(folder, self.spec, adapters)
        else:
            weights = itertools.chain(self._weights(self.compute_dtype), saved_buffers(self.model))
            self.model.save_pretrained(folder, state_dict=dict(weights))
        load_tokenizer(self.spec.model).save(folder)

    def _cuts(self, batch: Experience) -> list[Tensor]:
        """The rows of each micro-batch."""
        packed, trie = self.token_model.packs, self.token_model.trie(batch)
        limit, units = self.spec.micro_batching, batch.unit_ids
        return micro_batches(batch.lengths, limit, packed=packed, trie=trie, unit_ids=units)

    def _objective(self, objective: Objective, rows: Experience, balance: LoadBalance | None = None) -> ObjectiveOutput:
        micro_batch = rows.to(self.spec.device)
        return objective(self._forward(rows, objective.wanted, micro_batch, balance), micro_batch)

    def _forward(
        self,
        batch: Experience,
        wanted: Collection[Wanted],
        on_device: Experience | None = None,
        balance: LoadBalance | None = None,
    ) -> TokenOutputs:
        self.token_model.balance = balance
        with self._autocast():
            outputs: TokenOutputs = self.token_model(batch, wanted, on_device)
        return outputs

    def _autocast(self) -> AbstractContextManager[Any]:
        enabled = self.compute_dtype != torch.float32
        return torch.autocast(self.spec.device, dtype=self.compute_dtype, enabled=enabled)

    def _step(self) -> float:
        """Take the optimizer step; returns the learning rate."""
        lr = float(self.schedule.get_last_lr()[0])
        self.optimizer.step()
        self.schedule.step()
        if self.average is not None:
            self.average.update()
        self.optimizer.zero_grad(set_to_none=True)
        return lr

    def _nonfinite(self, loss: float, norm: float, mini_batch: Experience, objective: Objective) -> NonFiniteError:
        """The error, with the rows whose own loss or gradient is not finite: each row is run again, alone."""
        rows = []
        for row in range(len(mini_batch)):
            self.optimizer.zero_grad(set_to_none=True)
            own_loss = self._objective(objective, mini_batch.select(torch.tensor([row]))).loss
            own_loss.backward()  # type: ignore[no-untyped-call]
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            own_norm = torch.nn.utils.get_total_norm(gradients)
            if not (math.isfinite(own_loss.item()) and math.isfinite(own_norm.item())):
                rows.append(row)
        self.optimizer.zero_grad(set_to_none=True)
        return NonFiniteError(f"loss {loss} with gradient norm {norm}: the optimizer step was not taken", rows)

    def _move(self, device: str) -> None:
        self.model._apply(functools.partial(moved, device=device))  # as Module.to
        if self.average is not None:
            self.average.to(device)
        if self.spec.optim is not None:
            move_state(self.optimizer, device)
        if device == "cpu" and self.spec.device == "cuda":
            torch.cuda.empty_cache()


def _fill(tensors: Iterable[tuple[str, Tensor]], read: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors:
        if read[name].shape != tensor.shape:
            raise ValueError(f"{name} has shape {list(read[name].shape)}, not {list(tensor.shape)}")
        tensor.copy_(read[name])


def _copied(tensor: Tensor) -> Tensor:
    """A copy in host memory that no other code changes."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
