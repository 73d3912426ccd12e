"""Training strategy ``fsdp``: one model on 1 to N ranks, sharded by FSDP2 (``torch.distributed.fsdp.fully_shard``).

Every method except ``shape`` is a collective: all ranks call it, each with its own rows, possibly none.
"""

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from corerl.contracts.experience import Experience, collate
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective
from corerl.contracts.pieces import Piece
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import Output, TokenOutputs, Wanted
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import NonFiniteError, SaveError
from corerl.models import compute_dtype
from corerl_fsdp import sharded_checkpoint
from corerl_fsdp.mixture import load_balance
from corerl_fsdp.options import FsdpOptions
from corerl_fsdp.placement import full, full_together, shard_mesh, sharded_model
from corerl_fsdp.recomputing import recompute_activations
from corerl_fsdp.start_check import settle
from corerl_torch import contents, lora, loss_scale, ranks
from corerl_torch.average import Average, kept
from corerl_torch.context_parallel import row_group
from corerl_torch.experts.balance import with_balance
from corerl_torch.experts.parallel import expert_group
from corerl_torch.host_memory import moved
from corerl_torch.loading import model_shape
from corerl_torch.loss_scale import LossScale
from corerl_torch.micro_batches import lockstep_micro_batches
from corerl_torch.optimizer import build_optimizer, clip_gradients, exceeds, gradient_norm, move_state
from corerl_torch.outputs import Columns
from corerl_torch.rounding import RoundingLoss
from corerl_torch.schedules import build_schedule
from corerl_torch.stepping import ModelWeights
from corerl_torch.sums import Numbers, Sums
from corerl_torch.tokenizers import load_tokenizer
from corerl_torch.weights import as_in_files, held, saved_buffers


class FsdpStrategy:
    """This rank's share of the model; trained weights are float32, compute is in ``model.dtype``."""

    def __init__(self, spec: StrategySpec, options: FsdpOptions | None = None) -> None:
        self.spec, self.options, self.rounding = spec, options or FsdpOptions(), RoundingLoss()
        self.loss_scale = LossScale.of(spec)
        peers, timeout = self.options.peers, self.options.timeout
        lora.check_export(spec, self.options.lora_export)
        mesh = ranks.join(spec.device, timeout)
        shards, tensor = shard_mesh(mesh, self.options)
        context, heads = self.options.context_parallel_size, self.options.ulysses_sequence_parallel_size
        sharing = row_group(context, heads, timeout, self.options.tensor_model_parallel_size)
        experts = expert_group(self.options.expert_parallel_size, spec.device, timeout)
        self.data_parallel_rank, self.data_parallel_size = mesh.get_rank() // peers, mesh.size() // peers
        with ranks.deadline("loading the model", timeout):
            self.token_model: Any = sharded_model(spec, self.options, shards, sharing, experts, tensor)
        self.model: Any = self.token_model.model
        divided = shards.shape[-1] > 1 or self.options.offload_policy
        self._frees_weights = self.options.reshard_after_forward and divided
        """gathered weights are freed after each pass; otherwise they stay until the last pass of an update"""
        self.token_model.train(spec.optim is not None)
        self.device = spec.device
        self._writing_groups = ranks.WritingGroups(timeout)
        self.average: Average | None = None
        with ranks.deadline("comparing the model with its own forward", timeout):
            settle(self.token_model, self._run, spec, ranks.gather)
            self._reshard()
        self.balance = load_balance(self.token_model, self.options)
        if spec.optim is None:
            self.token_model.requires_grad_(False)
        else:
            recompute_activations(self.model, self.options, spec.model)
            if self.options.ema_decay is not None and spec.head == "lm":
                self.average = Average(self.model, self.options.ema_decay)
            self.optimizer = build_optimizer(self.model, spec.optim)
            self.schedule = build_schedule(self.optimizer, spec.optim, spec.total_steps)
            if (begins := contents.initial(self.options, contents.role_of(spec.head))) is not None:
                self._take(begins, contents.of_initial(self.options))
        self._rest()

    @torch.no_grad()
    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        with ranks.deadline("forward", self.options.timeout):
            self._wake()
            columns = Columns(batch.response_mask.shape)
            for rows in self._cuts(batch):
                columns.add(rows, self._run(batch.select(rows) if len(rows) else _idle_batch(), wanted))
            self._reshard()  # a gathered weight may be rounded, or a part of one
            self._rest()
        return columns.outputs()

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        with ranks.deadline("update", self.options.timeout):
            self._wake()
            shares = self._gradients(mini_batch, objective)
            numbers = Numbers.total(shares[:: self.options.peers])
            norm = self._gradient_norm()
            overflowed = self.loss_scale.overflowed(sum(share["loss"] for share in shares), norm)
            of_scale = self.loss_scale.metrics(overflowed=overflowed)
            if overflowed:
                self.optimizer.zero_grad(set_to_none=True)
                self._rest()
                return numbers.means(lr=float(self.schedule.get_last_lr()[0]), **of_scale)
            finite = math.isfinite(norm) and all(math.isfinite(share["loss"]) for share in shares)
            if not finite:
                rows_at_fault = ranks.rows_at_fault(
                    len(mini_batch),
                    self.data_parallel_rank,
                    self.data_parallel_size,
                    lambda rows: self._finite(mini_batch, rows, objective),
                )
                self._rest()
                raise NonFiniteError(
                    f"loss {numbers.loss} with gradient norm {norm}: the optimizer step was not taken", rows_at_fault
                )
            lr = self._step(norm)
            load = self.balance.finish(dist.all_reduce) if self.balance else {}
            self._rest()
            return numbers.means(grad_norm=norm, lr=lr, **of_scale, **load)

    def accumulate(self, mini_batch: Experience, objective: Objective) -> Numbers:
        """See :class:`corerl_torch.stepping.SteppedStrategy`."""
        with ranks.deadline("accumulate", self.options.timeout):
            self._wake()
            shares = self._gradients(mini_batch, objective)
            self._rest()
            return Numbers.total(shares[:: self.options.peers])

    def trained_weights(self) -> ModelWeights:
        return ModelWeights(self.model, self.optimizer, self.options.peers)

    def shape(self) -> ModelShape:
        return model_shape(self.model, self.spec.device)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """As the contract says; on every rank, and one full tensor at a time is alive."""
        buffers = ((name, each.to(self.spec.device)) for name, each in saved_buffers(self.model))
        return itertools.chain(self.rounding.stream(self._weights, dtype), buffers)

    @contextmanager
    def sharded_weights(self, dtype: torch.dtype | None = None) -> Iterator[list[Piece] | None]:
        """See :class:`corerl.contracts.pieces.ShardedStrategy`; adapters are merged into whole weights alone."""
        if lora.enabled(self.spec):
            yield None
            return
        config = self.model.config
        found = list(held.pieces(config, self.model.named_parameters(), dtype))
        self.rounding.look(((f"{each.name} {each.box}", each.tensor) for each in found), dtype)
        yield [*found, *held.pieces(config, saved_buffers(self.model), None)]

    def measured(self) -> dict[str, float]:
        return self.rounding.metrics()

    def _weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        away = self.device == "cpu" and not self.options.param_offload  # by offload()
        device = "cpu" if away else self.spec.device
        for name, whole in as_in_files(self.model.config, lora.merged(self.model, self._whole, dtype)):
            yield name, whole.to(device)
            del whole

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """See the contract; a collective with the calls of ``forward`` within."""
        self._wake()
        self._reshard()
        with kept(self.average).swapped():
            try:
                yield
            finally:
                self._reshard()
        self._rest()

    def _reshard(self) -> None:
        """Free gathered weights, so that the next pass gathers the present shares."""
        for module in self.token_model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def adapters(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """As :meth:`weights`."""
        return self.rounding.stream(lambda dtype: lora.apart(self.model, self._wholes, dtype), dtype)

    def base(self, limit: MicroBatching) -> AbstractContextManager[None]:
        return lora.base(self, limit)

    def offload(self) -> None:
        self._move(weights="cpu", optimizer="cpu")

    def onload(self) -> None:
        self._move(weights=self.spec.device, optimizer=self.spec.device)
        self._rest()

    def save(self, folder: Path) -> Callable[[], None]:
        """See the contract; all ranks see the same folder."""
        with ranks.deadline("save", self.options.timeout):
            write = sharded_checkpoint.save(
                folder,
                self.model,
                self.optimizer if self.options.save_optimizer else None,
                self.schedule,
                self._writing_groups,
                self.average,
            )

        scale = self.loss_scale.state() if self.loss_scale.enabled else ""

        def write_all() -> None:
            write()  # first: it must not lack a rank
            if dist.get_rank() == 0:
                lora.note(folder, self.spec)
                if scale:
                    (folder / loss_scale.FILE).write_text(scale)

        return write_all

    def load(self, folder: Path) -> None:
        """See the contract; the number of ranks may differ from that of :meth:`save`."""
        self._take(folder, contents.of_resumed(self.options))

    def _take(self, folder: Path, parts: Collection[str]) -> None:
        """Load parts of a checkpoint; a collective."""
        with ranks.deadline("load", self.options.timeout):
            if contents.MODEL in parts:
                lora.check_stored(folder, self.spec)
            if contents.EXTRA in parts:
                self.loss_scale.load(folder)
            sharded_checkpoint.load(folder, self.model, self.optimizer, self.schedule, self.average, parts=parts)

    def export(self, folder: Path) -> None:
        """See the contract; rank 0 writes, with the whole model in host memory."""
        adapter = lora.enabled(self.spec) and self.options.lora_export == "adapter"
        dtype = compute_dtype(self.spec.model, self.spec.device)
        adapters = ((name, self._whole(each)) for name, each in lora.trained(self.model))
        weights: dict[str, Tensor] = {}
        whole = itertools.chain(self._weights(dtype), saved_buffers(self.model))
        for name, tensor in adapters if adapter else whole:
            if dist.get_rank() == 0:
                weights[name] = tensor.to("cpu", copy=True)

        def write() -> None:
            if adapter:
                lora.write_adapter(folder, self.spec, weights)
            else:
                self.model.save_pretrained(folder, state_dict=weights)
            load_tokenizer(self.spec.model).save(folder)

        with ranks.deadline("export", self.options.timeout):
            ranks.on_first_rank(write, SaveError)

    def _whole(self, parameter: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        with ranks.deadline("weights", self.options.timeout):
            return full(parameter, self.spec.device, dtype)

    def _wholes(self, parameters: Sequence[Tensor], dtype: torch.dtype | None) -> list[Tensor]:
        with ranks.deadline("weights", self.options.timeout):
            return full_together(parameters, self.spec.device, dtype)

    def _cuts(self, batch: Experience) -> list[Tensor]:
        """The rows of each micro-batch."""
        return lockstep_micro_batches(
            batch.lengths,
            self.spec.micro_batching,
            ranks.gather,
            packed=self.token_model.packs,
            sharing=self.options.ranks_of_a_row,
            trie=self.token_model.trie(batch),
            unit_ids=batch.unit_ids,
        )

    def _run(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        self.token_model.balance = None
        outputs: TokenOutputs = self.token_model(batch, wanted)
        return outputs

    def _gradients(self, mini_batch: Experience, objective: Objective) -> list[dict[str, Any]]:
        """Add the gradient of a mini-batch; the sums of every rank."""
        if self.average is not None:
            self.token_model.averaged = self.average.outside_body(self._whole)
        sums = Sums()
        cuts = self._cuts(mini_batch)
        if self.balance is not None:
            leads = dist.get_rank() % self.options.ranks_of_a_row == 0
            self.balance.prepare(mini_batch, lambda: self._count(mini_batch, cuts), dist.all_reduce, counts_rows=leads)
        with self.loss_scale.scaled(self.model.parameters()) as scale:
            for number, rows in enumerate(cuts, start=1):
                is_last = number == len(cuts)
                self.token_model.set_requires_gradient_sync(self.options.sums_at_once or is_last)
                self.token_model.set_reshard_after_backward(self._frees_weights or is_last)
                self._backward(mini_batch, rows, objective, sums, scale)
        return ranks.gather(vars(sums.numbers()))

    def _backward(
        self, mini_batch: Experience, rows: Tensor, objective: Objective, sums: Sums, scale: float = 1.0
    ) -> None:
        """Add the gradient of these rows; without rows, add zeros: the other ranks' collectives need this rank."""
        if len(rows):
            own = mini_batch.select(rows)
            micro_batch = own.to(self.spec.device)
            self.token_model.balance = self.balance
            output = objective(self.token_model(own, objective.wanted, micro_batch), micro_batch)
            sums.add(output)
            loss = with_balance(output.loss, self.balance) * scale
        else:
            wanted: Output = "log_probs" if self.spec.head == "lm" else "values"
            loss = getattr(self._run(_idle_batch(), {wanted}), wanted).sum() * 0.0
        loss.backward()

    @torch.no_grad()
    def _count(self, mini_batch: Experience, cuts: Sequence[Tensor]) -> None:
        """A forward pass whose choices of experts are counted."""
        for rows in cuts:
            if len(rows):
                self.token_model.balance = self.balance
                self.token_model(mini_batch.select(rows), ())
            else:
                self._run(_idle_batch(), ())
        self.token_model.reshard()

    def _gradient_norm(self) -> float:
        return float(gradient_norm(self.model.parameters()))

    def _step(self, norm: float) -> float:
        """Clip the gradient and take the optimizer step; returns the learning rate."""
        if exceeds(norm, self.spec.grad_clip):
            total = torch.tensor(norm, device=self.spec.device)
            clip_gradients(self.model.parameters(), self.spec.grad_clip, total)
        lr = float(self.schedule.get_last_lr()[0])
        if self.options.optimizer_offload or self.options.param_offload:  # a loaded state is where the weights rest
            self._move(optimizer=self.spec.device)
        self.optimizer.step()
        self.schedule.step()
        if self.average is not None:
            self.average.update()
        self.optimizer.zero_grad(set_to_none=True)
        return lr

    def _finite(self, mini_batch: Experience, rows: Tensor, objective: Objective) -> bool:
        """Whether loss and gradient of these rows of all ranks are finite."""
        self.optimizer.zero_grad(set_to_none=True)
        self.token_model.set_requires_gradient_sync(True)
        sums = Sums()
        self._backward(mini_batch, rows, objective, sums)
        finite = all(math.isfinite(loss) for loss in ranks.gather(sums.numbers().loss))
        finite = math.isfinite(self._gradient_norm()) and finite
        self.optimizer.zero_grad(set_to_none=True)
        return finite

    def _wake(self) -> None:
        """Undo :meth:`_rest`."""
        if self.options.param_offload:
            self._move(weights=self.spec.device)

    def _rest(self) -> None:
        """Move the parts that the options keep on the CPU there, between calls."""
        self._move(
            weights="cpu" if self.options.param_offload else None,
            optimizer="cpu" if self.options.optimizer_offload else None,
        )

    def _move(self, *, weights: str | None = None, optimizer: str | None = None) -> None:
        if self.spec.device == "cpu" or self.options.offload_policy:
            return
        if weights is not None:
            self.token_model._apply(functools.partial(moved, device=weights))  # as Module.to
            if self.average is not None:
                self.average.to(weights)
            self.device = weights
        if optimizer is not None and self.spec.optim is not None:
            move_state(self.optimizer, optimizer)
        if "cpu" in (weights, optimizer):
            torch.cuda.empty_cache()


def _idle_batch() -> Experience:
    """One row with one token to predict, for a rank without rows."""
    return collate([[0]], [[0]], [0])
