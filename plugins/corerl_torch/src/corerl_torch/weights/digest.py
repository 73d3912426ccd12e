"""A digest of a tensor's bytes in integer arithmetic: equal on every device, and computed on the tensor's device."""

from collections.abc import Iterable

import torch
from torch import Tensor

CHUNK = {"cpu": 2**21, "cuda": 2**23}
"""elements at a time, by type of device: a large tensor needs little additional memory, a GPU few kernels"""

STEP = -7046029254386353131
FACTOR = -4658895280553007687
"""odd 64-bit constants of splitmix64 (Steele, Lea and Flood, 2014), as signed integers"""


def digests(tensors: Iterable[Tensor]) -> list[int]:
    """The digest of each tensor in its own dtype; the host waits for the device once."""
    taken = [digest(tensor, tensor.dtype) for tensor in tensors]
    return torch.stack(taken).tolist() if taken else []


@torch.no_grad()
def digest(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """() int64, on the tensor's device: the digest of the elements in order, as ``dtype``.

    The sum over words w_i of 8 bytes of mix(w_i + (i + 1)·STEP), modulo 2^64; the last word is padded with zeros.
    """
    flat = tensor.detach().reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    words = 0
    chunks: tuple[Tensor, ...] = flat.split(CHUNK[flat.device.type])  # type: ignore[no-untyped-call]
    for chunk in chunks:
        raw = _words(chunk.to(dtype))
        place = torch.arange(words + 1, words + 1 + len(raw), device=raw.device)
        mixed = place.mul_(STEP).add_(raw)
        mixed = mixed.bitwise_xor_(mixed >> 30).mul_(FACTOR)
        total += mixed.bitwise_xor_(mixed >> 27).sum()
        words += len(raw)
    return total


def _words(chunk: Tensor) -> Tensor:
    """(words,) int64 with the bytes of a flat tensor."""
    if chunk.stride(0) != 1:
        chunk = chunk.clone(memory_format=torch.contiguous_format)
    raw = chunk.view(torch.uint8)
    lacking = -len(raw) % 8
    if lacking or raw.storage_offset() % 8:
        padded = raw.new_zeros(len(raw) + lacking)
        padded[: len(raw)] = raw
        raw = padded
    return raw.view(torch.int64)
