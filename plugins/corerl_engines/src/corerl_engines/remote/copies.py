"""Copies that an engine makes from a buffer to its layers: noted once, repeated for later values of the buffer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes, within, how tensors are computed from buffers: views of them scaled in place, and copied elsewhere.

    Args:
        buffers: memory whose values come again, in the same places.

    Attributes:
        is_whole: all copied values are those of the buffers.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = {buffer.untyped_storage().data_ptr() for buffer in buffers}
        self._scaled: dict[float, list[Tensor]] = {}
        self._from: list[Tensor] = []
        self._to: list[Tensor] = []
        self.is_whole = True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            self._copied(args[0], args[1])
        elif function in (torch.ops.aten.mul_.Tensor, torch.ops.aten.mul_.Scalar):
            self._multiplied(args[0], args[1])
        return function(*args, **(kwargs or {}))

    def _copied(self, to: Tensor, source: Tensor) -> None:
        if not any(source.stride()):  # one number for all, the zeros of an empty layer, which stay
            return
        self.is_whole &= self._is_of_buffer(source)
        self._from.append(source)
        self._to.append(to)

    def _multiplied(self, tensor: Tensor, factor: Any) -> None:
        """Note it: scaling comes before copying."""
        self.is_whole &= self._is_of_buffer(tensor) and not self._to and not isinstance(factor, Tensor)
        if self.is_whole:
            self._scaled.setdefault(float(factor), []).append(tensor)

    def _is_of_buffer(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._places

    def repeat(self) -> None:
        """Do the same with the present values of the buffers."""
        for factor, tensors in self._scaled.items():
            torch._foreach_mul_(tensors, factor)
        torch._foreach_copy_(self._to, self._from, non_blocking=True)
