"""Adapters (LoRA) of a model shared by ranks: those of peft by name, shape and first values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Size, Tensor, nn

from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ConfigError
from corerl_megatron.low_rank import KINDS, LowRank, attach
from corerl_megatron.parallel import Layout
from corerl_megatron.table import Weight
from corerl_megatron.weights import Weights
from corerl_torch import lora
from corerl_torch.loading import load_model


@dataclass(frozen=True)
class Trained:
    """A trained parameter of the whole model.

    Attributes:
        shape: of all ranks together.
        own: this rank's part; None: the parameter is another stage's.
        dim: dimension in which tensor-parallel ranks divide it; None: each has it whole.
    """

    shape: Size
    own: Tensor | None
    dim: int | None


class Adapters:
    """Inserted into a model's pieces, whose own weights are frozen but for a value head. Its construction is a
    collective; its methods are those of :class:`corerl_megatron.weights.Weights`, for the trained parameters.

    Args:
        table: the model's weights.
        source: on rank 0 the trained tensors by their names in a transformers model; they are the first values.

    Raises:
        ConfigError: ``model.target_modules`` names a layer whose weight is no linear layer's of the table.
    """

    def __init__(
        self, pieces: Sequence[Any], spec: StrategySpec, table: Weights, ranks: Layout, source: Mapping[str, Tensor]
    ) -> None:
        self.ranks, self.device = ranks, spec.device
        self.scale = lora.scale(vars(spec.model))
        shapes = shapes_of(spec)
        layers = {weight: weight.parts for weight in table.table if weight.kind in KINDS and weight.expert is None}
        known = {part.removesuffix(".weight") for parts in layers.values() for part in parts}
        for stem in {_stem(name) for name in shapes if ".lora_" in name} - known:
            raise ConfigError(
                "model.target_modules",
                f"strategy megatron has no adapter of '{stem}': name layers of attention and of a dense MLP, such as "
                "[q_proj, k_proj, v_proj, o_proj]",
            )
        self.entries = dict[str, Trained]()
        for piece in pieces:
            piece.requires_grad_(False)
        for weight in layers:
            self._insert(weight, table, spec, shapes)
        for name in (name for name in shapes if ".lora_" not in name):  # a value head
            own = table.parameters.get(name)
            if own is not None:
                own.requires_grad_(True)
                own.data = own.data.float()
            self.entries[name] = Trained(shapes[name], own, None)
        self.entries = {name: self.entries[name] for name in shapes}
        self.parameters = {name: each.own for name, each in self.entries.items() if each.own is not None}
        self.pairs = [module for piece in pieces for module in piece.modules() if isinstance(module, LowRank)]
        self.fill(source)

    def _insert(self, weight: Weight, table: Weights, spec: StrategySpec, shapes: Mapping[str, Size]) -> None:
        stems = [part.removesuffix(".weight") for part in weight.parts]
        adapted = [_name(stem, "A") in shapes for stem in stems]
        if not any(adapted):
            return
        pairs: LowRank | None = None
        if (layer := table.layer(weight)) is not None:
            parts = [table.shapes[part] for part in weight.parts]
            rank, shares = spec.model.lora_rank, bool(layer.config.sequence_parallel)
            geometry, tensor, device = table.geometry, self.ranks.tensor, self.device
            pairs = LowRank(
                weight.kind,
                parts,
                adapted,
                rank,
                self.scale,
                geometry,
                tensor,
                sequence_parallel=shares,
                device=device,
            )
            attach(layer, pairs)
        dims = {"A": 1} if weight.kind == "columns" else {"B": 0}
        for number, (stem, has) in enumerate(zip(stems, adapted, strict=True)):
            for side in ("A", "B") if has else ():
                own_part = None if pairs is None else getattr(pairs, side)[str(number)]
                self.entries[_name(stem, side)] = Trained(shapes[_name(stem, side)], own_part, dims.get(side))

    def set_scale(self, factor: float) -> None:
        """The factor of B A of all adapters from now on."""
        self.scale = factor
        for each in self.pairs:
            each.scale = factor

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within, the model computes without adapters."""
        for each in self.pairs:
            each.off = True
        try:
            yield
        finally:
            for each in self.pairs:
                each.off = False

    @torch.no_grad()
    def stream(self, of: Callable[[Tensor], Tensor] = Tensor.detach) -> Iterator[tuple[str, Tensor]]:
        """(name in a transformers model, full tensor) of every trained parameter, on every rank; a collective.

        Args:
            of: the streamed tensor of a parameter, in its shape: itself, its gradient, the optimizer's moments.
        """
        whole, parts = self._memory()
        for part, each in zip(parts, self.entries.values(), strict=True):
            if each.own is not None and (each.dim is not None or self.ranks.tensor.rank == 0):
                self._share(part, each).copy_(of(each.own))
        for group in (self.ranks.tensor, self.ranks.pipeline):
            if group.size > 1:  # every number is one rank's: the sum is exact
                dist.all_reduce(whole, group=group.group)
        yield from zip(self.entries, parts, strict=True)

    @torch.no_grad()
    def fill(
        self,
        source: Mapping[str, Tensor] | None,
        device: str = "",
        dtype: torch.dtype = torch.float32,
        of: Callable[[Tensor], Tensor] = Tensor.detach,
    ) -> None:
        """Set all trained parameters, or tensors of theirs, from rank 0's ``source``; a collective."""
        whole, parts = self._memory()
        given = source or {}
        for name, each in self.entries.items() if given else ():  # on every rank that has read a file
            if (shape := given[name].shape) != each.shape:
                raise ValueError(f"'{name}' has shape {list(shape)}, not {list(each.shape)}")
        if dist.get_rank() == 0:
            for name, part in zip(self.entries, parts, strict=True):
                part.copy_(given[name])
        dist.broadcast(whole, 0)
        for part, each in zip(parts, self.entries.values(), strict=True):
            if each.own is not None:
                of(each.own).copy_(self._share(part, each))

    def stream_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """None: adapters have no buffers, and those of the model are those of its files."""
        return iter(())

    def fill_buffers(self, source: Mapping[str, Tensor] | None, device: str) -> None:
        """Nothing to set."""

    def merged(self, named: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The model's weights with the adapters merged in float32; a collective."""
        trained = dict(self.stream())
        for name, base in named:
            stem = name.removesuffix(".weight")
            left, right = (trained.get(_name(stem, side)) for side in ("B", "A"))
            if left is not None and right is not None:
                yield name, lora.with_adapter(base.to(left.device), left, right, self.scale)
            else:
                yield name, trained.get(name, base)

    def _memory(self) -> tuple[Tensor, list[Tensor]]:
        """One tensor of zeros, and its views for all trained parameters."""
        shapes = [each.shape for each in self.entries.values()]
        whole = torch.zeros(sum(shape.numel() for shape in shapes), dtype=torch.float32, device=self.device)
        parts = torch.split(whole, [shape.numel() for shape in shapes])
        return whole, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _share(self, whole: Tensor, each: Trained) -> Tensor:
        """This rank's part of a whole tensor, a view."""
        tensor = self.ranks.tensor
        return whole if each.dim is None else whole.chunk(tensor.size, dim=each.dim)[tensor.rank]


def shapes_of(spec: StrategySpec) -> dict[str, Size]:
    """The trained parameters of a transformers model with these adapters, by name.

    Raises:
        ConfigError: as :func:`corerl_torch.lora.insert`.
    """
    model = load_model(spec.model, spec.head, device="meta", dtype=torch.float32)
    lora.add(model, spec)
    return {name: parameter.shape for name, parameter in lora.trained(model)}


def first_values(model: nn.Module, spec: StrategySpec) -> dict[str, Tensor]:
    """The trained parameters of a transformers model in this process, which gets the adapters."""
    lora.add(model, spec)
    return {name: parameter.detach() for name, parameter in lora.trained(model)}


def _name(stem: str, side: str) -> str:
    return f"{stem}.lora_{side}.{lora.ADAPTER}.weight"


def _stem(name: str) -> str:
    return name.split(".lora_")[0]
