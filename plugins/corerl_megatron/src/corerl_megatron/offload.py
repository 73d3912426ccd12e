"""Moves tensors out of CUDA memory and back by their storages, so that tensors with a common storage move together."""

from collections.abc import Iterable

import torch
from torch import Tensor

from corerl_torch.host_memory import HostBlock


class Storages:
    """The storages of tensors, on CUDA or out of it.

    Args:
        keep: restore the content; otherwise it is undefined after :meth:`restore`.
    """

    def __init__(self, *, keep: bool = True) -> None:
        self.keep = keep
        self._away: list[tuple[torch.UntypedStorage, int]] = []
        self._block = HostBlock()

    @property
    def away(self) -> bool:
        """Whether some are out of CUDA memory."""
        return bool(self._away)

    def offload(self, tensors: Iterable[Tensor], but: Iterable[Tensor] = ()) -> None:
        """Free the CUDA memory of ``tensors``, except storages shared with ``but``."""
        if self._away:
            return
        seen = {each.untyped_storage().data_ptr() for each in but}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if not tensor.is_cuda or not storage.size() or storage.data_ptr() in seen:
                continue
            seen.add(storage.data_ptr())
            self._away.append((storage, storage.size()))
        if self.keep and self._away:
            for storage, copy in self._copies():
                copy.copy_(_bytes(storage), non_blocking=True)
            torch.cuda.synchronize()
        for storage, _ in self._away:
            storage.resize_(0)

    def restore(self) -> None:
        """Undo :meth:`offload`."""
        for storage, size in self._away:
            storage.resize_(size)
        if self.keep and self._away:
            for storage, copy in self._copies():
                _bytes(storage).copy_(copy, non_blocking=True)
            torch.cuda.synchronize()
        self._away.clear()

    def _copies(self) -> list[tuple[torch.UntypedStorage, Tensor]]:
        """Each storage with its part of the main memory."""
        sizes = [size for _, size in self._away]
        parts = torch.split(self._block.of(sum(sizes)), sizes)
        return [(storage, part) for (storage, _), part in zip(self._away, parts, strict=True)]


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
