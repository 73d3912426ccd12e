"""Boxes: ranges of indices in every dimension of a tensor, which stand for the elements inside."""

import math
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from corerl.contracts.pieces import Box


def whole(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return tuple((0, size) for size in shape)


def size(box: Box) -> int:
    """Number of elements."""
    return math.prod(stop - start for start, stop in box)


def intersection(one: Box, other: Box) -> Box | None:
    """The common elements; None if there are none."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def without(box: Box, hole: Box) -> Iterator[Box]:
    """Disjoint boxes of the elements of ``box`` outside ``hole``, which is a part of it."""
    left = box
    for dim, ((start, stop), (first, last)) in enumerate(zip(box, hole, strict=True)):
        for low, high in ((start, first), (last, stop)):
            if low < high:
                yield (*left[:dim], (low, high), *box[dim + 1 :])
        left = (*left[:dim], (first, last), *left[dim + 1 :])


def disjoint(boxes: Iterable[Box]) -> list[Box]:
    """Boxes of the same elements, each in one box; boxes without elements are left out."""
    found: list[Box] = []
    for box in boxes:
        rest = [box] if size(box) else []
        for other in found:
            rest = [part for each in rest for part in _outside(each, other)]
        found += rest
    return found


def _outside(box: Box, other: Box) -> Iterable[Box]:
    common = intersection(box, other)
    return (box,) if common is None else without(box, common)


def part(tensor: Tensor, own: Box, box: Box) -> Tensor:
    """The view of ``box`` in a tensor that is ``own`` of a weight."""
    for dim, ((start, stop), (origin, end)) in enumerate(zip(box, own, strict=True)):
        if (start, stop) != (origin, end):
            tensor = tensor.narrow(dim, start - origin, stop - start)
    return tensor
