"""Weights shared by the other side: read from an unnamed file in memory, or from CUDA memory by its IPC handle."""

import functools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
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
    return _views(_opened(bucket), bucket["tensors"])


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
        """Copy a bucket, described as for :func:`read`; returns whether its tensors replaced earlier ones in place.

        ``tensors`` is None if they are those of the last bucket.

        Raises:
            RuntimeError: there was no last bucket.
        """
        layout = self._layout if bucket["tensors"] is None else bucket["tensors"]
        if not layout:
            raise RuntimeError("the tensors of an adapter are not described, and no earlier update had described them")
        flat = _opened({**bucket, "tensors": layout})
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


def of_nodes(group: Any) -> None:
    """From now on only the first rank of this group, of all ranks of an engine over several nodes, opens buckets."""
    global _nodes
    _nodes = group


_nodes: Any = None
"""ranks to which the first one broadcasts each bucket; None: all open it themselves"""


def _opened(bucket: Mapping[str, Any]) -> Tensor:
    """(bytes,) uint8: the memory of a bucket, or a copy of it."""
    if _nodes is not None:
        return _broadcast(bucket)
    shared = memory(bucket["source"])
    # an engine that can sleep keeps weights in memory that other devices cannot write
    return shared.to(torch.cuda.current_device()) if shared.is_cuda else shared


def _broadcast(bucket: Mapping[str, Any]) -> Tensor:
    """On the device of the group's backend.

    Raises:
        RuntimeError: the first rank could not open the bucket.
    """
    device = torch.device("cuda" if dist.get_backend(_nodes) == "nccl" else "cpu")
    flat = torch.empty(
        max(each["offset"] + _size(each) for each in bucket["tensors"]), dtype=torch.uint8, device=device
    )
    is_open, why = torch.ones(1, dtype=torch.uint8, device=device), "the first rank could not read the weights"
    if dist.get_rank(_nodes) == 0:
        try:
            flat.copy_(memory(bucket["source"])[: len(flat)])
        except Exception as error:
            is_open, why = is_open.zero_(), f"{type(error).__name__}: {error}"
    dist.broadcast(is_open, group_src=0, group=_nodes)
    if not is_open.item():
        raise RuntimeError(why)
    dist.broadcast(flat, group_src=0, group=_nodes)
    return flat


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
