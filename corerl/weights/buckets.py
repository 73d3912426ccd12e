"""A stream of named tensors as flat buckets of bytes, and back: few large transfers in place of many small ones."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

ALIGNMENT = 16
"""bytes; a tensor starts at a multiple, so that it can be a view of its bucket in any dtype"""


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in its bucket: ``offset`` in bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Bucket:
    """Several tensors in one.

    Attributes:
        data: (bytes,) uint8, on the CPU.
        index: the tensors in it, in the order of the stream.
    """

    data: Tensor
    index: tuple[Slot, ...]


def pack(weights: Iterable[tuple[str, Tensor]], bucket_bytes: int) -> Iterator[Bucket]:
    """Buckets of at most ``bucket_bytes``; a tensor larger than that has a bucket of its own.

    The stream is read one tensor ahead of the bucket that is yielded; every bucket has new memory.
    """
    waiting: list[tuple[Slot, Tensor]] = []
    for slot, tensor in place(weights, bucket_bytes):
        if waiting and slot.offset == 0:
            yield _fill(waiting)
            waiting = []
        waiting.append((slot, tensor))
    if waiting:
        yield _fill(waiting)


def place(
    weights: Iterable[tuple[str, Tensor]], bucket_bytes: int, dtype: torch.dtype | None = None
) -> Iterator[tuple[Slot, Tensor]]:
    """Where each tensor goes; an offset of 0 begins another bucket. The stream is read as this one is.

    Args:
        dtype: of floating-point tensors in the bucket; None: their own.
    """
    end = 0
    for name, tensor in weights:
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        slot = Slot(name, kind, tuple(tensor.shape), end)
        if end + slot.size > bucket_bytes:
            slot = replace(slot, offset=0)
        yield slot, tensor
        end = -(-(slot.offset + slot.size) // ALIGNMENT) * ALIGNMENT


def unpack(buckets: Iterable[Bucket]) -> Iterator[tuple[str, Tensor]]:
    """The stream that was packed; the tensors are views of their buckets."""
    for bucket in buckets:
        for slot in bucket.index:
            yield slot.name, view(bucket.data, slot)


def view(data: Tensor, slot: Slot) -> Tensor:
    """The tensor of a slot in (bytes,) uint8 on any device."""
    return data[slot.offset : slot.offset + slot.size].view(slot.dtype).reshape(slot.shape)


def _fill(tensors: list[tuple[Slot, Tensor]]) -> Bucket:
    last = tensors[-1][0]
    data = torch.zeros(last.offset + last.size, dtype=torch.uint8)
    bucket = Bucket(data, tuple(slot for slot, _ in tensors))
    for (_, view), (_, tensor) in zip(unpack([bucket]), tensors, strict=True):
        view.copy_(tensor.detach())
    return bucket
