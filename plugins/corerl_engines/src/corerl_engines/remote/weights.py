"""Weights shared by the other side: read from an unnamed file in memory, or from CUDA memory by its IPC handle."""

import functools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def visible_devices() -> list[str]:
    """The UUIDs of the CUDA devices that this process can use."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def read(bucket: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bucket, as views, or as views of a copy on this process's device if the bucket is elsewhere.

    Args:
        bucket: ``source`` (``path`` of a file, or ``device`` and ``handle``) and ``tensors``: name, dtype, shape and
            offset of each.
    """
    return _views(_opened(bucket["source"]), bucket["tensors"])


class Held:
    """A copy of a bucket, which stays in the same memory as long as later buckets have the same tensors.

    Attributes:
        memory: (bytes,) uint8.
        tensors: its views, by name.
    """

    def __init__(self) -> None:
        self.memory, self.tensors = torch.empty(0, dtype=torch.uint8), dict[str, Tensor]()
        self._layout: list[dict[str, Any]] = []

    def take(self, bucket: Mapping[str, Any], device: torch.device) -> bool:
        """Copy a bucket, described as for :func:`read`; returns whether its tensors replaced earlier ones in place."""
        layout = bucket["tensors"]
        flat = _opened(bucket["source"])
        if layout == self._layout:
            self.memory.copy_(flat[: len(self.memory)])
            return True
        size = max(tensor["offset"] + _size(tensor) for tensor in layout)
        self.memory = flat[:size].to(device, copy=True)
        self.tensors, self._layout = dict(_views(self.memory, layout)), layout
        return False


def memory(source: Mapping[str, Any]) -> Tensor:
    """(bytes,) uint8: the shared memory itself, on any device."""
    if "path" in source:
        return _mapped(source["path"])
    return _shared(source["device"], tuple(source["handle"]))


def _opened(source: Mapping[str, Any]) -> Tensor:
    """(bytes,) uint8: the memory of a bucket."""
    shared = memory(source)
    # an engine that can sleep keeps weights in memory that other devices cannot write
    return shared.to(torch.cuda.current_device()) if shared.is_cuda else shared


def _views(flat: Tensor, layout: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    for tensor in layout:
        part = flat[tensor["offset"] : tensor["offset"] + _size(tensor)]
        yield tensor["name"], part.view(getattr(torch, tensor["dtype"])).view(tensor["shape"])


def _size(tensor: Mapping[str, Any]) -> int:
    """Bytes."""
    dtype: torch.dtype = getattr(torch, tensor["dtype"])
    return torch.Size(tensor["shape"]).numel() * dtype.itemsize


def _mapped(path: str) -> Tensor:
    with Path(path).open("r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)


@functools.lru_cache(maxsize=1)  # the bucket is reused many times, and opened once
def _shared(device: str, handle: tuple[Any, ...]) -> Tensor:
    index = visible_devices().index(device)
    block, size, offset, counter, counter_offset, event, wait = handle
    storage = torch.UntypedStorage._new_shared_cuda(
        index, bytes.fromhex(block), size, offset, bytes.fromhex(counter), counter_offset, bytes.fromhex(event), wait
    )
    return torch.empty(0, dtype=torch.uint8, device=f"cuda:{index}").set_(storage, 0, (size,), (1,))
