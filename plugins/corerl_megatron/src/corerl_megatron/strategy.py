"""Training strategy ``megatron``: one model on ranks that share matrices, layers, tokens, experts and rows.

Every method except ``shape`` is a collective: all ranks call it; ranks of one data-parallel rank have the same rows.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.contracts.experience import Experience, collate
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective
from corerl.contracts.pieces import Piece
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import ARCHITECTURE, MicroBatching, StrategySpec
from corerl.errors import ConfigError, ModelError, NonFiniteError, SaveError
from corerl.models import compute_dtype
from corerl_megatron import model, parallel, pipeline
from corerl_megatron.adapters import Adapters, first_values
from corerl_megatron.arithmetic import (
    ModelFacts,
    check_bridge,
    check_device,
    check_experts,
    check_installed,
    check_model,
    check_shared,
)
from corerl_megatron.checkpoint import Checkpoint
from corerl_megatron.offload import Storages
from corerl_megatron.optimizer import LibraryOptimizer, PlainOptimizer
from corerl_megatron.options import MegatronOptions
from corerl_megatron.stepping import SharedWeights
from corerl_megatron.transformer_keys import check_transformer
from corerl_megatron.weights import Weights
from corerl_torch import contents, lora, packed_attention
from corerl_torch import ranks as world
from corerl_torch.loading import load_model, model_shape, own_random_state
from corerl_torch.lora import cast
from corerl_torch.micro_batches import lockstep_micro_batches
from corerl_torch.outputs import Columns, flat, grouped
from corerl_torch.rounding import RoundingLoss
from corerl_torch.sums import Numbers, Sums
from corerl_torch.tokenizers import load_tokenizer
from corerl_torch.weights import as_in_files, saved_buffers

KEY = "actor.strategy"


class MegatronStrategy:
    """This rank's share of the model. Weights are in ``model.dtype``; with bf16 the optimizer adds float32 weights."""

    def __init__(self, spec: StrategySpec, options: MegatronOptions | None = None) -> None:
        self.spec, self.options, self.rounding = spec, options or MegatronOptions(), RoundingLoss()
        check_installed(KEY, self.options)
        check_transformer(KEY, self.options)
        check_model(spec.model, KEY, self.options)
        lora.check_export(spec, self.options.lora_export)
        self.dtype = compute_dtype(spec.model, spec.device)
        self.meta: Any = load_model(spec.model, spec.head, device="meta", dtype=self.dtype)
        facts = ModelFacts.read("model.path", self.meta.config.to_dict())
        check_shared(KEY, facts, self.options)
        if facts.experts and spec.device == "cpu":
            raise ConfigError("model.path", "megatron-core runs experts only on CUDA")
        check_experts(KEY, facts)
        check_bridge(KEY, facts, self.options, head=spec.head)
        check_device(spec.device, self.options, KEY)
        if spec.device == "cpu" and spec.optim is not None and self.dtype != torch.float32:
            raise ConfigError(
                "model.dtype", "megatron trains bf16 only on CUDA, where its optimizer keeps float32 weights: use fp32"
            )
        self.ranks = parallel.lay_out(spec.device, self.options, KEY)
        self.data_parallel_rank, self.data_parallel_size = self.ranks.data.rank, self.ranks.data.size
        if spec.device == "cuda":
            packed_attention.find_kernel()
        with world.deadline("loading the model", self.options.timeout):
            with own_random_state(spec.device, spec.seed):  # some of its modules are initialised randomly
                self.pieces = model.build(spec, self.options, self.ranks, facts, self.meta)
            self.weights_table = Weights(self.pieces, facts, self.meta, self.ranks, spec.head)
            self.adapted: Adapters | None = None
            self._load()
        self.optimizer = self._optimizer()
        same = {name: getattr(self.meta.config, name, None) for name in ARCHITECTURE} | {"head": spec.head}
        trained = self.adapted or self.weights_table
        self.checkpoint = Checkpoint(
            self.pieces,
            trained,
            self.optimizer,
            self.ranks,
            same,
            self.options.timeout,
            with_optimizer=self.options.save_optimizer,
        )
        self._weights, self._gradients, self._state = Storages(), Storages(keep=False), Storages()
        begins = contents.initial(self.options, contents.role_of(spec.head))
        if spec.optim is not None and begins is not None:
            self._take(begins, contents.of_initial(self.options))
        self._rest()

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        with world.deadline("forward", self.options.timeout), torch.no_grad():
            self._weights.restore()
            cuts = self._cuts(batch)
            kept = pipeline.run(
                self.pieces,
                [_rows(batch, rows) for rows in cuts],
                lambda piece, micro_batch: piece(micro_batch.to(self.spec.device), wanted),
                lambda micro_batch, outputs: (None, outputs),
                backward=False,
                device=self.spec.device,
            )
            columns = Columns(batch.response_mask.shape)
            for rows, outputs in zip(cuts, kept, strict=False):
                columns.add(rows, outputs)
            results = pipeline.from_last_stage(columns.flat, self.ranks.pipeline, self.spec.device)
            self._rest()
        return grouped(results)

    def update(self, mini_batch: Experience, objective: Objective) -> dict[str, Mean]:
        with world.deadline("update", self.options.timeout):
            self._weights.restore()
            if self.options.grad_offload:
                self._gradients.restore()
                self.optimizer.zero_grad()
            numbers, loss_is_finite = self._backward(mini_batch, self._cuts(mini_batch), objective)
            norm = self.optimizer.reduce()
            if not (loss_is_finite and math.isfinite(norm)):
                rows = world.rows_at_fault(
                    len(mini_batch),
                    self.data_parallel_rank,
                    self.data_parallel_size,
                    lambda rows: self._finite(mini_batch, rows, objective),
                )
                self._rest()
                raise NonFiniteError(
                    f"loss {numbers.loss} with gradient norm {norm}: the optimizer step was not taken", rows
                )
            self._state.restore()
            lr = self.optimizer.step()
            self._rest()
            return numbers.means(grad_norm=norm, lr=lr)

    def accumulate(self, mini_batch: Experience, objective: Objective) -> Numbers:
        """See :class:`corerl_torch.stepping.SteppedStrategy`."""
        with world.deadline("accumulate", self.options.timeout):
            return self._backward(mini_batch, self._cuts(mini_batch), objective)[0]

    def trained_weights(self) -> SharedWeights:
        """See :class:`corerl_torch.stepping.SteppedStrategy`."""
        return SharedWeights(self)

    def shape(self) -> ModelShape:
        return model_shape(self.meta, self.spec.device)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """As the contract says; on every rank, and one full tensor at a time is alive."""
        return itertools.chain(self.rounding.stream(self._named_weights, dtype), self._named_buffers())

    @contextmanager
    def sharded_weights(self, dtype: torch.dtype | None = None) -> Iterator[list[Piece] | None]:
        """See :class:`corerl.contracts.pieces.ShardedStrategy`; not of merged adapters, of mbridge's export,
        and of experts that files have in one tensor.
        """
        if self.adapted is not None or self.options.use_mbridge or self.weights_table.stacked:
            yield None
            return
        away = self._weights.away and not self.options.param_offload
        self._weights.restore()
        found = list(self.weights_table.held(dtype))
        self.rounding.look(((f"{each.name} {each.box}", each.tensor) for each in found), dtype)
        yield found
        if away:
            self._weights.offload(self._parameters())
        self._rest()

    def measured(self) -> dict[str, float]:
        return self.rounding.metrics()

    def _named_weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        def rounded(tensor: Tensor) -> Tensor:
            return cast(tensor, dtype)

        away = self._weights.away and not self.options.param_offload
        device = "cpu" if away else self.spec.device
        self._weights.restore()
        with world.deadline("weights", self.options.timeout):
            table = self.weights_table
            if self.adapted is not None:
                named = self.adapted.merged(table.stream())
            else:
                named = self.bridge.export_weights(self.pieces) if self.options.use_mbridge else table.stream(rounded)
            for name, whole in named:
                yield name, rounded(whole).to(device)
                del whole
        if away:
            self._weights.offload(self._parameters())
        self._rest()

    def _named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        with world.deadline("weights", self.options.timeout):
            yield from self.weights_table.stream_buffers()

    def adapters(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """As :meth:`weights`."""
        return self.rounding.stream(self._named_adapters, dtype)

    def _named_adapters(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        assert self.adapted is not None
        self._weights.restore()
        with world.deadline("adapters", self.options.timeout):
            for name, whole in self.adapted.stream():
                yield lora.in_files(name), cast(whole, dtype)
        self._rest()

    @contextmanager
    def base(self, limit: MicroBatching) -> Iterator[None]:
        """See :class:`corerl.contracts.adapters.AdaptingStrategy`."""
        assert self.adapted is not None
        spec, self.spec = self.spec, replace(self.spec, micro_batching=limit)
        try:
            with self.adapted.off():
                yield
        finally:
            self.spec = spec

    def offload(self) -> None:
        self._gradients.offload(self._main_gradients())
        self._state.offload(self.optimizer.state() if self.spec.optim else (), but=self._parameters())
        self._weights.offload(self._parameters())
        parallel.free_memory()

    def onload(self) -> None:
        self._weights.restore()
        self._state.restore()
        self._gradients.restore()
        if self.spec.optim is not None:
            self.optimizer.zero_grad()
        self._rest()

    def save(self, folder: Path) -> Callable[[], None] | None:
        """See the contract; all ranks see the same folder."""
        with world.deadline("save", self.options.timeout):
            self._all_here()
            world.on_first_rank(lambda: lora.note(folder, self.spec), SaveError)
            write = self.checkpoint.save(folder)
            self._rest()
        return write

    def load(self, folder: Path) -> None:
        """See the contract; the layout of the ranks may differ from that of :meth:`save`."""
        self._take(folder, contents.of_resumed(self.options))

    def _take(self, folder: Path, parts: Collection[str]) -> None:
        """Load parts of a checkpoint; a collective."""
        with world.deadline("load", self.options.timeout):
            self._all_here()
            if contents.MODEL in parts:
                lora.check_stored(folder, self.spec)
            self.checkpoint.load(folder, parts)
            self._rest()

    def export(self, folder: Path) -> None:
        """See the contract; rank 0 writes, with the whole model in host memory."""
        weights: dict[str, Tensor] = {}
        adapter = self.adapted if self.options.lora_export == "adapter" else None
        for name, tensor in self.weights() if adapter is None else adapter.stream():
            if dist.get_rank() == 0:
                weights[name] = tensor.to("cpu", copy=True)

        def write() -> None:
            from huggingface_hub import save_torch_state_dict

            if adapter is not None:
                lora.write_adapter(folder, self.spec, weights)
                load_tokenizer(self.spec.model).save(folder)
                return
            save_torch_state_dict(weights, folder)
            self.meta.config.save_pretrained(folder)
            if self.meta.can_generate():
                self.meta.generation_config.save_pretrained(folder)
            load_tokenizer(self.spec.model).save(folder)

        with world.deadline("export", self.options.timeout):
            world.on_first_rank(write, SaveError)

    def _load(self) -> None:
        """Rank 0 reads the model into host memory, and sends it tensor by tensor."""
        if self.options.use_mbridge:
            from corerl_megatron import bridge

            self.bridge = bridge.open_bridge(KEY, self.spec.model, self.dtype)
            if self.spec.model.load_format != "dummy":
                bridge.load(self.bridge, self.pieces, self.spec.model, self.meta)
                return
        source, first = dict[str, Tensor](), dict[str, Tensor]()

        def read() -> None:
            loaded = load_model(self.spec.model, self.spec.head, device="cpu", dtype=self.dtype, seed=self.spec.seed)
            if self.spec.head == "lm":
                self.meta.generation_config = loaded.generation_config
            named = itertools.chain(as_in_files(loaded.config, loaded.named_parameters()), saved_buffers(loaded))
            source.update((name, tensor.detach()) for name, tensor in named)
            if lora.enabled(self.spec):
                first.update(first_values(loaded, self.spec))

        world.on_first_rank(read, ModelError)
        self.weights_table.fill(source or None, self.spec.device, self.dtype)
        self.weights_table.fill_buffers(source or None, self.spec.device)
        if lora.enabled(self.spec):
            self.adapted = Adapters(self.pieces, self.spec, self.weights_table, self.ranks, first)

    def _optimizer(self) -> Any:
        if self.spec.optim is None:
            for piece in self.pieces:
                piece.requires_grad_(False)
            return None
        if self.spec.device == "cpu" or self.adapted is not None:
            return PlainOptimizer(self.pieces, self.spec, self.ranks)
        return LibraryOptimizer(self.pieces, self.pieces[0].config, self.spec, self.options)

    def _cuts(self, batch: Experience) -> list[Tensor]:
        """Rows of each micro-batch; with interleaved stages their number is a multiple of the stages."""
        interleaved = self.options.virtual_pipeline_model_parallel_size
        return lockstep_micro_batches(
            batch.lengths,
            self.spec.micro_batching,
            world.gather,
            packed=True,
            sharing=self.ranks.context.size,
            multiple=self.ranks.pipeline.size if interleaved else 1,
            unit_ids=batch.unit_ids,
        )

    def _backward(self, mini_batch: Experience, cuts: list[Tensor], objective: Objective) -> tuple[Numbers, bool]:
        """Add the gradient of these rows; returns the numbers of all ranks, and whether every loss is finite."""
        wanted = objective.wanted
        idle: frozenset[Wanted] = frozenset({"values" if self.spec.head == "value" else "log_probs"})

        def run(piece: Any, micro_batch: Experience) -> Tensor | TokenOutputs:
            outputs: Tensor | TokenOutputs = piece(
                micro_batch.to(self.spec.device), idle if micro_batch.loss_weights is None else wanted
            )
            return outputs

        def finish(micro_batch: Experience, outputs: TokenOutputs) -> tuple[Tensor, Any]:
            if micro_batch.loss_weights is None:  # no rows
                nothing = next(iter(flat(outputs).values())).sum() * 0.0
                return nothing, None
            output = objective(outputs, micro_batch.to(self.spec.device))
            return output.loss, output

        kept = pipeline.run(
            self.optimizer.pieces,
            [_rows(mini_batch, rows) for rows in cuts],
            run,
            finish,
            backward=True,
            device=self.spec.device,
        )
        sums = Sums()
        for output in kept:
            if output is not None:
                sums.add(output)
        shares = world.gather(vars(sums.numbers()) if self.ranks.speaks else None)
        shares = [share for share in shares if share is not None]
        return Numbers.total(shares), all(math.isfinite(share["loss"]) for share in shares)

    def _finite(self, mini_batch: Experience, rows: Tensor, objective: Objective) -> bool:
        """Whether loss and gradient of these rows of all ranks are finite."""
        self.optimizer.zero_grad()
        count = self.ranks.pipeline.size if self.options.virtual_pipeline_model_parallel_size else 1
        cuts = [rows] + [torch.zeros(0, dtype=torch.int64)] * (count - 1)
        finite = self._backward(mini_batch, cuts, objective)[1]
        finite = math.isfinite(self.optimizer.reduce()) and finite
        self.optimizer.zero_grad()
        return finite

    def _parameters(self) -> Iterator[Tensor]:
        for piece in self.pieces:
            yield from piece.parameters()

    def _main_gradients(self) -> Iterator[Tensor]:
        for parameter in self._parameters():
            if hasattr(parameter, "main_grad"):
                yield parameter.main_grad

    def _all_here(self) -> None:
        self._weights.restore()
        self._state.restore()

    def _rest(self) -> None:
        """Move the parts that the options keep out of CUDA memory, between calls."""
        options, trained = self.options, self.spec.optim is not None
        if options.grad_offload:
            self._gradients.offload(self._main_gradients())
        if options.optimizer_offload and trained:
            self._state.offload(self.optimizer.state(), but=self._parameters())
        if options.param_offload:
            self._weights.offload(self._parameters())
        if options.grad_offload or options.optimizer_offload or options.param_offload:
            parallel.free_memory()


def _rows(batch: Experience, rows: Tensor) -> Experience:
    """The given rows; without rows, one row with one token of weight zero."""
    return batch.select(rows) if len(rows) else collate([[0]], [[0]], [0])
