"""Conversion of weights between Hugging Face and megatron-core: pure, exact functions for every :data:`Kind`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.contracts.pieces import Box
from corerl_megatron.arithmetic import padded_vocabulary
from corerl_megatron.families.family import Kind


@dataclass(frozen=True)
class Geometry:
    """Facts of a model for the conversions.

    Attributes:
        groups: key and value heads.
        heads_per_group: query heads for each key and value head.
        vocabulary: without padding.
    """

    groups: int
    heads_per_group: int
    vocabulary: int


def shard(kind: Kind, parts: Sequence[Tensor], rank: int, ranks: int, geometry: Geometry) -> Tensor:
    """The part of tensor-parallel rank ``rank`` of ``ranks``, of the weight made from ``parts``."""
    if kind == "gate_up":
        return torch.cat([part.chunk(ranks)[rank] for part in parts])
    if kind == "qkv":
        return _interleave(parts, geometry).chunk(ranks)[rank]
    (whole,) = parts
    if kind in ("turned", "turned_pairs"):
        turned = whole.t()
        return torch.cat([turned[::2], turned[1::2]]) if kind == "turned_pairs" else turned.contiguous()
    if kind == "vocabulary":
        missing = padded_vocabulary(geometry.vocabulary, ranks) - len(whole)
        whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])]) if missing else whole
    return whole if kind == "whole" else whole.chunk(ranks, dim=int(kind == "columns"))[rank]


def unshard(kind: Kind, shards: Sequence[Tensor], geometry: Geometry) -> list[Tensor]:
    """Inverse of :func:`shard`: the parts, from the shards of all ranks, in order."""
    if kind == "whole":
        return [shards[0]]
    if kind == "gate_up":
        halves = [each.chunk(2) for each in shards]
        return [_join([half[part] for half in halves]) for part in range(2)]
    if kind == "qkv":
        return _apart(_join(shards), geometry)
    if kind in ("turned", "turned_pairs"):
        turned = torch.stack(shards[0].chunk(2), dim=1).flatten(0, 1) if kind == "turned_pairs" else shards[0]
        return [turned.t().contiguous()]
    if kind == "vocabulary":
        return [_join(shards)[: geometry.vocabulary]]
    return [_join(shards, dim=int(kind == "columns"))]


def held(kind: Kind, own: Tensor, rank: int, ranks: int, geometry: Geometry) -> Iterator[tuple[int, Box, Tensor]]:
    """(number of the part, box in it, values) of a rank's shard, as views; padding of the vocabulary is left out.

    A shard that is ``turned`` has no such boxes.
    """
    if kind == "qkv":
        yield from _held_heads(own, rank, ranks, geometry)
        return
    dim, position = int(kind == "columns"), 0 if kind == "whole" else rank
    for number, values in enumerate(own.chunk(2) if kind == "gate_up" else (own,)):
        start = position * values.shape[dim]
        room = geometry.vocabulary - start if kind == "vocabulary" else values.shape[dim]
        values = values.narrow(dim, 0, min(max(0, room), values.shape[dim]))
        box = tuple((start, start + size) if each == dim else (0, size) for each, size in enumerate(values.shape))
        if values.numel():
            yield number, box, values


def _held_heads(own: Tensor, rank: int, ranks: int, geometry: Geometry) -> Iterator[tuple[int, Box, Tensor]]:
    """Of each group: its query heads, its key head, its value head."""
    counts, here = [geometry.heads_per_group, 1, 1], geometry.groups // ranks
    size = len(own) // (here * sum(counts))
    cut: Callable[..., Sequence[Tensor]] = torch.split
    rows = cut(own, [count * size for _ in range(here) for count in counts])
    for position, values in enumerate(rows):
        group, number = divmod(position, len(counts))
        start = (rank * here + group) * len(values)
        yield number, ((start, start + len(values)), *((0, each) for each in values.shape[1:])), values


def _interleave(parts: Sequence[Tensor], geometry: Geometry) -> Tensor:
    """(heads · size, ...) of query, key and value by groups: a group's queries, its key, its value."""
    by_group = [part.reshape(geometry.groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(by_group, dim=1).flatten(0, 1)


def _apart(whole: Tensor, geometry: Geometry) -> list[Tensor]:
    heads = whole.reshape(geometry.groups, geometry.heads_per_group + 2, -1, *whole.shape[1:])
    cut: Callable[..., Sequence[Tensor]] = torch.split
    return [part.flatten(0, 2) for part in cut(heads, [geometry.heads_per_group, 1, 1], dim=1)]


def _join(shards: Sequence[Tensor], dim: int = 0) -> Tensor:
    return shards[0] if len(shards) == 1 else torch.cat(list(shards), dim=dim)
