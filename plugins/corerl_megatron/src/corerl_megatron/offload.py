"""Moves tensors out of CUDA memory and back by their storages, so that tensors with a common storage move together."""

from collections.abc import Iterable

import torch
from torch import Tensor


class Storages:
    """The storages of tensors, on CUDA or out of it.

    Args:
        keep: restore the content; otherwise it is undefined after :meth:`restore`.
    """

    def __init__(self, *, keep: bool = True) -> None:
        self.keep = keep
        self._away: list[tuple[torch.UntypedStorage, int, torch.UntypedStorage | None]] = []

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
            copy = storage.cpu() if self.keep else None  # type: ignore[no-untyped-call]
            self._away.append((storage, storage.size(), copy))
            storage.resize_(0)

    def restore(self) -> None:
        """Undo :meth:`offload`."""
        for storage, size, copy in self._away:
            storage.resize_(size)
            if copy is not None:
                storage.copy_(copy)
        self._away.clear()
