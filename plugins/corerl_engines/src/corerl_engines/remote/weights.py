"""Weights shared by the other side: read from an unnamed file in memory, or from CUDA memory by its IPC handle."""

import functools
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def visible_devices() -> list[str]:
    """The UUIDs of the CUDA devices that this process can use."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def read(bucket: dict[str, Any], copy_to: torch.device | None = None) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bucket, as views, or as views of a copy on this process's device if the bucket is elsewhere.

    Args:
        bucket: ``source`` (``path`` of a file, or ``device`` and ``handle``) and ``tensors``: name, dtype, shape and
            offset of each.
        copy_to: yield views of one copy on this device instead.
    """
    source = bucket["source"]
    if "path" in source:
        flat = _mapped(source["path"])
    else:
        flat = _shared(source["device"], tuple(source["handle"]))
        # an engine that can sleep keeps weights in memory that other devices cannot write
        flat = flat.to(torch.cuda.current_device())
    if copy_to is not None:
        last = bucket["tensors"][-1]
        size = torch.Size(last["shape"]).numel() * getattr(torch, last["dtype"]).itemsize
        flat = flat[: last["offset"] + size].to(copy_to, copy=True)
    for tensor in bucket["tensors"]:
        dtype: torch.dtype = getattr(torch, tensor["dtype"])
        start, size = tensor["offset"], torch.Size(tensor["shape"]).numel() * dtype.itemsize
        yield tensor["name"], flat[start : start + size].view(dtype).view(tensor["shape"])


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
