"""A stream of named tensors as flat buckets of bytes, and back: few large transfers instead of many small ones."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from corerl.errors import RunError
from corerl_torch.weights.digest import digest, digests

ALIGNMENT = 16
"""bytes; every tensor starts at a multiple, so that it can be a view of its bucket in any dtype"""


@dataclass(frozen=True)
class Slot:
    """The position of a tensor in its bucket: ``offset`` in bytes."""

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
    """Several tensors in one buffer.

    Attributes:
        data: (bytes,) uint8.
        index: its tensors, in the order of the stream.
        digests: of each tensor when it was packed (:mod:`corerl_torch.weights.digest`); empty: not computed.
    """

    data: Tensor
    index: tuple[Slot, ...]
    digests: tuple[int, ...] = ()


def new_memory(size: int) -> Tensor:
    """(size,) uint8 on the CPU."""
    return torch.empty(size, dtype=torch.uint8)


def pack(
    weights: Iterable[tuple[str, Tensor]],
    bucket_bytes: int,
    *,
    memory: Callable[[int], Tensor] = new_memory,
    verify: bool = False,
) -> Iterator[Bucket]:
    """Buckets of at most ``bucket_bytes``; a larger tensor has a bucket of its own.

    Each tensor is copied before the next one is requested; when a bucket is yielded, the first tensor of the next
    bucket has been read.

    Args:
        memory: returns (size,) uint8 for a bucket, on any device.
        verify: compute digests.
    """
    data, slots, given = new_memory(0), list[Slot](), list[Tensor]()
    for slot, tensor in place(weights, bucket_bytes):
        if slots and slot.offset == 0:
            yield _bucket(data, slots, given)
            slots, given = [], []
        if not slots:
            data = memory(max(slot.size, bucket_bytes))
        view(data, slot).copy_(tensor.detach())
        slots.append(slot)
        if verify:
            given.append(digest(tensor, tensor.dtype))
    if slots:
        yield _bucket(data, slots, given)


def place(
    weights: Iterable[tuple[str, Tensor]], bucket_bytes: int, dtype: torch.dtype | None = None
) -> Iterator[tuple[Slot, Tensor]]:
    """The slot of each tensor; an offset of 0 starts another bucket. Reads the stream as the slots are read.

    Args:
        dtype: of floating-point tensors in the bucket; None: unchanged.
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
    """The packed stream; the tensors are views of their buckets.

    Raises:
        RunError: the digest of a tensor differs from its digest at packing.
    """
    for bucket in buckets:
        views = [view(bucket.data, slot) for slot in bucket.index]
        if bucket.digests:
            _compare(bucket, views)
        for slot in bucket.index:
            yield slot.name, views.pop(0)
        del bucket  # frees its memory for the next one


def view(data: Tensor, slot: Slot) -> Tensor:
    """The tensor of a slot in (bytes,) uint8 on any device."""
    return data[slot.offset : slot.offset + slot.size].view(slot.dtype).view(slot.shape)


def _bucket(data: Tensor, slots: list[Slot], given: list[Tensor]) -> Bucket:
    taken = tuple(torch.stack(given).tolist()) if given else ()
    return Bucket(data[: slots[-1].offset + slots[-1].size], tuple(slots), taken)


def _compare(bucket: Bucket, views: list[Tensor]) -> None:
    for slot, before, after in zip(bucket.index, bucket.digests, digests(views).tolist(), strict=True):
        if before != after:
            raise RunError(f"the weight '{slot.name}' changed on its way to the rollout worker: its digest is another")
