"""The pieces of a model's weights that a rank holds: of DTensors with any placements over a mesh of any dimension."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from corerl.contracts.pieces import Box, Piece
from corerl_torch.weights.boxes import part, whole
from corerl_torch.weights.names import experts_apart


def pieces(config: Any, named: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None) -> Iterator[Piece]:
    """The pieces of this rank, by the names in model files; no communication, no copy.

    Args:
        config: of the transformers model.
        named: its parameters and buffers; a plain tensor is held whole. Stacks of experts are split, as
            :func:`corerl_torch.weights.as_in_files` does.
        dtype: of floating-point pieces that are sent; None: their own.
    """
    apart = experts_apart(config.model_type)
    for name, tensor in named:
        stem, _, last = name.rpartition(".")
        for own, local in local_boxes(tensor):
            kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            piece = Piece(name, tuple(tensor.shape), own, local.detach(), kind)
            if apart and stem.endswith("mlp.experts"):
                yield from _of_experts(piece, stem, last)
            else:
                yield piece


def local_boxes(tensor: Tensor) -> Iterator[tuple[Box, Tensor]]:
    """The boxes of a tensor that are on this rank, and their values, as views.

    Raises:
        ValueError: a DTensor holds sums that are not complete.
    """
    if not isinstance(tensor, DTensor):
        yield whole(tensor.shape), tensor
        return
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return
    with torch.no_grad():
        local = tensor.to_local()
    own = whole(local.shape)
    for box, place in _places(tuple(tensor.shape), tensor.device_mesh.shape, tuple(coordinate), tensor.placements):
        yield box, part(local, own, place)


@functools.lru_cache(maxsize=4096)  # each update asks again, for the same shapes
def _places(
    shape: tuple[int, ...], mesh: tuple[int, ...], coordinate: tuple[int, ...], placements: tuple[Any, ...]
) -> list[tuple[Box, Box]]:
    """The boxes of a rank: in the whole tensor, and in its local one."""
    runs = [_runs(each) for each in _indices(shape, mesh, coordinate, placements)]
    return [
        (
            tuple((start, start + length) for start, _, length in chosen),
            tuple((at, at + length) for _, at, length in chosen),
        )
        for chosen in itertools.product(*runs)
    ]


def _indices(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]
) -> list[Tensor]:
    """Of every dimension, the indices that a rank holds, in the order of its local tensor.

    A strided shard (of FSDP over tensor parallel) divides each of ``split_factor`` equal parts among the ranks.
    """
    held = [torch.arange(size) for size in shape]
    for ranks, rank, placement in zip(mesh, coordinate, placements, strict=True):
        if isinstance(placement, Replicate):
            continue
        dim = getattr(placement, "dim", None)
        if dim is None:
            raise ValueError(f"a weight with the placement {placement} has no values yet")
        parts = _chunks(held[dim], getattr(placement, "split_factor", 1))
        held[dim] = torch.cat([_chunks(each, ranks)[rank] for each in parts])
    return held


def _chunks(indices: Tensor, number: int) -> list[Tensor]:
    """As ``torch.chunk``, filled up with empty ones."""
    found = list(indices.chunk(number)) if len(indices) else []
    return found + [indices[:0]] * (number - len(found))


def _runs(indices: Tensor) -> list[tuple[int, int, int]]:
    """(first index, its position, length) of each run of consecutive indices."""
    if not len(indices):
        return []
    ends = (torch.nonzero(indices.diff() != 1).flatten() + 1).tolist()
    bounds = itertools.pairwise([0, *ends, len(indices)])
    return [(int(indices[start]), start, stop - start) for start, stop in bounds]


def _of_experts(piece: Piece, stem: str, last: str) -> Iterator[Piece]:
    """Of a stack (experts, rows, columns), ``gate_up_proj`` with the rows of both: the pieces of each expert."""
    names = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
    rows = piece.shape[1] // len(names)
    (first, _), (start, stop), columns = piece.box
    for number, own in enumerate(piece.tensor, first):
        for position, name in enumerate(names):
            low, high = max(start, position * rows), min(stop, (position + 1) * rows)
            if low < high:
                box = ((low - position * rows, high - position * rows), columns)
                values = own[low - start : high - start]
                yield Piece(f"{stem}.{number}.{name}.weight", (rows, piece.shape[2]), box, values, piece.dtype)
