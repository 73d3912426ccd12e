"""Reads and writes weights under their Hugging Face names, one tensor at a time, for any layout of the ranks.

The owners of a weight are the ranks of one pipeline stage, each tensor-parallel rank with a part, and of one
expert-parallel rank.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.contracts.pieces import Piece
from corerl_megatron.arithmetic import ModelFacts
from corerl_megatron.conversion import held, shard, unshard
from corerl_megatron.families import FAMILIES
from corerl_megatron.parallel import Group, Layout
from corerl_megatron.table import EXPERT, LAYER, Weight, experts_apart, experts_together, mapped
from corerl_torch import ranks as world


class Weights:
    """The weights of a model shared by ranks, and their positions. Its construction is a collective.

    Args:
        pieces: this rank's pieces of the model.
        meta: the transformers model, without storage.
    """

    def __init__(self, pieces: Sequence[Any], facts: ModelFacts, meta: Any, ranks: Layout, head: str) -> None:
        self.pieces, self.ranks, self.facts = pieces, ranks, facts
        table, self.shapes, self.geometry = mapped(facts, meta, head)
        self.stacked = FAMILIES[facts.model_type].stacked
        self.table = [weight for weight in table if not weight.buffer]
        self.buffers = [weight for weight in table if weight.buffer]
        self.parameters: dict[str, Tensor] = dict(_global_names(pieces, facts, ranks, "named_parameters"))
        self.values = self.parameters | dict(_global_names(pieces, facts, ranks, "named_buffers"))
        present = world.gather([ranks.pipeline.rank, sorted(self.values)])
        self.stage = {name: stage for stage, names in reversed(present) for name in names}

    def local(self, weight: Weight) -> Tensor | None:
        """This rank's part of a weight; None if it has none."""
        return next((self.values[name] for name in weight.names if name in self.values), None)

    def layer(self, weight: Weight) -> Any:
        """The module that holds a weight; None if it is no module of this rank."""
        own = self.local(weight)
        modules = (module for piece in self.pieces for module in piece.modules())
        return (
            None if own is None else next(each for each in modules if any(own is p for p in each._parameters.values()))
        )

    @torch.no_grad()
    def fill(
        self,
        source: Mapping[str, Tensor] | None,
        device: str,
        dtype: torch.dtype,
        of: Callable[[Tensor], Tensor] = Tensor.detach,
    ) -> None:
        """Set all parameters, or tensors of theirs, from rank 0's ``source``; a collective.

        Args:
            source: read on rank 0 only.
            of: as for :meth:`stream`.
        """
        self._fill(self.table, source, device, dtype, of)

    @torch.no_grad()
    def fill_buffers(self, source: Mapping[str, Tensor] | None, device: str) -> None:
        """Set the buffers that belong to the model's files; a collective."""
        self._fill(self.buffers, source, device, torch.float32, Tensor.detach)

    def _fill(
        self,
        weights: Sequence[Weight],
        source: Mapping[str, Tensor] | None,
        device: str,
        dtype: torch.dtype,
        of: Callable[[Tensor], Tensor],
    ) -> None:
        tensor = self.ranks.tensor
        if source is not None and self.stacked:
            source = dict(experts_apart(source.items()))
        for weight in weights:
            parts = []
            for name in weight.parts:
                whole = torch.empty(self.shapes[name], dtype=dtype, device=device)
                if dist.get_rank() == 0:
                    assert source is not None
                    whole.copy_(source[name])
                dist.broadcast(whole, 0)
                parts.append(whole)
            own = [self.local(weight)] + ([self.parameters.get(weight.copy)] if weight.copy else [])
            rank, size = (tensor.rank, tensor.size) if weight.expert is None else (0, 1)
            for parameter in own:
                if parameter is not None:
                    of(parameter).copy_(shard(weight.kind, parts, rank, size, self.geometry))

    def stream(self, of: Callable[[Tensor], Tensor] = Tensor.detach) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, full tensor) of every parameter, on every rank; a collective.

        Args:
            of: the streamed tensor of a parameter, in its shape: itself, its gradient, the optimizer's moments.
        """
        named = self._stream(of)
        yield from experts_together(named, self.facts.experts) if self.stacked else named

    def _stream(self, of: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Tensor]]:
        like = of(next(iter(self.parameters.values())))
        for weight in self.table:
            parameter = self.local(weight)
            parts = [] if parameter is None else self._parts(weight, of(parameter))
            yield from zip(weight.parts, self._everywhere(weight, parts, like), strict=True)

    def stream_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """As :meth:`stream`, of the buffers that belong to the model's files, in float32."""
        like = next(iter(self.parameters.values())).detach().float()[:0]
        for weight in self.buffers:
            own = self.local(weight)
            parts = [] if own is None else [own.detach().float()]
            yield from zip(weight.parts, self._everywhere(weight, parts, like), strict=True)

    def held(self, dtype: torch.dtype | None) -> Iterator[Piece]:
        """The pieces of this rank; no communication, no copy.

        Args:
            dtype: in which floating-point pieces of parameters are sent; None: their own.
        """
        for weight in (*self.table, *self.buffers):
            parameter = self.local(weight)
            if parameter is None:
                continue
            own = parameter.detach()
            kind = dtype if dtype is not None and own.is_floating_point() and not weight.buffer else own.dtype
            rank, size = (self.ranks.tensor.rank, self.ranks.tensor.size) if weight.expert is None else (0, 1)
            for number, box, values in held(weight.kind, own, rank, size, self.geometry):
                name = weight.parts[number]
                yield Piece(name, tuple(self.shapes[name]), box, values, kind)

    def _parts(self, weight: Weight, own: Tensor) -> list[Tensor]:
        """The parts, on the ranks of the stage (for experts: on one expert-parallel rank)."""
        tensor, shards = self.ranks.tensor, [own]
        if tensor.size > 1 and weight.kind != "whole" and weight.expert is None:
            shards = [torch.empty_like(own) for _ in range(tensor.size)]
            dist.all_gather(shards, own.contiguous(), group=tensor.group)
        return unshard(weight.kind, shards, self.geometry)

    def _everywhere(self, weight: Weight, parts: list[Tensor], like: Tensor) -> list[Tensor]:
        """The parts, on all ranks; ``like`` has their dtype and device."""
        pipeline, expert = self.ranks.pipeline, self.ranks.expert
        stage = next(self.stage[name] for name in weight.names if name in self.stage)
        if weight.expert is not None and expert.size > 1 and pipeline.rank == stage:
            parts = self._from(expert, weight.expert * expert.size // self.facts.experts, weight, parts, like)
        return self._from(pipeline, stage, weight, parts, like) if pipeline.size > 1 else parts

    def _from(self, group: Group, source: int, weight: Weight, parts: list[Tensor], like: Tensor) -> list[Tensor]:
        """The parts of the group's ``source``-th rank."""
        if group.rank == source:
            parts = [part.contiguous() for part in parts]
        else:
            parts = [like.new_empty(self.shapes[name]) for name in weight.parts]
        for part in parts:
            dist.broadcast(part, group.global_rank(source), group=group.group)
        return parts


def _global_names(pieces: Sequence[Any], facts: ModelFacts, ranks: Layout, named: str) -> Iterator[tuple[str, Tensor]]:
    """This rank's parameters or buffers, with layers and experts counted over all ranks."""
    first = ranks.expert.rank * (facts.experts // ranks.expert.size)
    for piece in pieces:
        layers = [layer.layer_number - 1 for layer in piece.decoder.layers]
        experts = range(first, facts.experts)
        for name, parameter in getattr(piece, named)():
            yield _renumbered(EXPERT, _renumbered(LAYER, name, layers), experts), parameter


def _renumbered(pattern: re.Pattern[str], name: str, numbers: Sequence[int]) -> str:
    return pattern.sub(lambda found: f"{found[1]}{numbers[int(found[2])]}{found[3]}", name)
