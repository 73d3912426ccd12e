"""A digest of a tensor's bytes in integer arithmetic: equal on every device, and computed on the tensor's device.

An engine's process reads this package too, under another name: it imports torch (and triton) only.
"""

import functools
import importlib
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

CHUNK = {"cpu": 2**21, "cuda": 2**26}
"""elements at a time, by type of device: a large tensor needs little additional memory, a GPU few kernels"""

STEP = -7046029254386353131
FACTOR = -4658895280553007687
"""odd 64-bit constants of splitmix64 (Steele, Lea and Flood, 2014), as signed integers"""


def digests(tensors: Sequence[Tensor]) -> Tensor:
    """(tensors,) int64, on the tensors' device: the digest of each in its own dtype."""
    totals = torch.zeros(len(tensors), dtype=torch.int64, device=tensors[0].device if tensors else "cpu")
    for total, tensor in zip(totals.unbind(), tensors, strict=True):
        _add(total, tensor, tensor.dtype)
    return totals


def digest(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """() int64, on the tensor's device: the digest of the elements in order, as ``dtype``.

    The sum over words w_i of 8 bytes of mix(w_i + (i + 1)·STEP), modulo 2^64; the last word is padded with zeros.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    _add(total, tensor, dtype)
    return total


def _add(total: Tensor, tensor: Tensor, dtype: torch.dtype) -> None:
    flat, most = tensor.detach().reshape(-1), CHUNK[tensor.device.type]
    words, chunks = 0, (flat,)
    if flat.numel() > most:  # a split alone takes the host a third of its time here
        chunks = flat.split(most)  # type: ignore[no-untyped-call]
    for chunk in chunks:
        raw = _words(chunk.to(dtype))
        if raw.is_cuda and (kernel := _kernel()) is not None:
            kernel.add(total, raw, words)
        else:
            place = torch.arange(words + 1, words + 1 + raw.numel(), device=raw.device)
            mixed = place.mul_(STEP).add_(raw)
            mixed = mixed.bitwise_xor_(mixed >> 30).mul_(FACTOR)
            total += mixed.bitwise_xor_(mixed >> 27).sum()
        words += raw.numel()


@functools.cache
def _kernel() -> Any:
    """The module of the kernel; None: triton is missing, or compiles nothing here, because it needs a C compiler."""
    try:
        kernel = importlib.import_module(f"{__name__}.kernel")
        word = torch.zeros((1,), dtype=torch.int64, device="cuda")
        kernel.add(torch.zeros_like(word[0]), word, 0)
    except Exception as error:  # of triton, its compiler or its driver
        logger.warning("digests of weights are slow, because triton compiles no kernel: %s", error)
        return None
    return kernel


def _words(chunk: Tensor) -> Tensor:
    """(words,) int64 with the bytes of a flat tensor."""
    if chunk.stride(0) != 1:
        chunk = chunk.clone(memory_format=torch.contiguous_format)
    size = chunk.numel() * chunk.itemsize
    lacking = -size % 8
    if lacking or chunk.storage_offset() * chunk.itemsize % 8:
        padded = chunk.new_zeros(size + lacking, dtype=torch.uint8)
        padded[:size] = chunk.view(torch.uint8)
        chunk = padded
    return chunk.view(torch.int64)
