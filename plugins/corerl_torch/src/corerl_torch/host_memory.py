"""Main memory for tensors that leave CUDA memory between calls.

Copies into new, pageable memory take a second for each 2 to 4 GB, most of it for the first touch of each page. Copies
into pinned memory that is kept run at the rate of the bus. Pinning touches each page as well. Huge pages are fewer:
``mlock`` of 4 GiB takes a fifth of the time in pages of 2 MiB (CPU, Linux).
"""

import contextlib
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class HostBlock:
    """One block of bytes, as large as the largest request so far.

    Requests of a larger block lose the content.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._release: Callable[[], object] = lambda: None

    def of(self, size: int) -> Tensor:
        """(``size``,) uint8, the same memory in each call; pinned if CUDA can pin as much."""
        if size > len(self._bytes):
            self._release()
            self._bytes = torch.empty(0, dtype=torch.uint8)  # free the former block before the next is allocated
            self._bytes = torch.frombuffer(of_huge_pages(size), dtype=torch.uint8)
            self._release = pin(self._bytes)
        return self._bytes[:size]


def of_huge_pages(size: int) -> mmap.mmap:
    """Memory of this process, in huge pages if the kernel has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # the kernel has none
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def pin(block: Tensor) -> Callable[[], object]:
    """Pin the memory of a tensor, if possible; returns a function that ends this, as the end of the tensor does."""
    if not torch.cuda.is_available():
        return lambda: None
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = block.data_ptr()
    if int(runtime.cudaHostRegister(address, block.numel() * block.element_size(), 0)):
        return lambda: None
    return weakref.finalize(block, lambda: runtime.cudaHostUnregister(address))


def moved(tensor: Tensor, device: str) -> Tensor:
    """The tensor on a device.

    Copies from CUDA are in pinned memory, which torch keeps for the next time; in other memory if none can be pinned.
    """
    if device != "cpu" or not tensor.is_cuda:
        return tensor.to(device, non_blocking=True)  # work on the device waits for it
    with contextlib.suppress(torch.cuda.OutOfMemoryError, torch.AcceleratorError):
        copy = tensor.to(device, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return copy
    return tensor.to(device)
