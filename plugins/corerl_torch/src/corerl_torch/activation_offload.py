"""Activations on the CPU between the forward and the backward pass.

Autograd's hooks of saved tensors (torch.autograd.graph.saved_tensors_hooks) replace a saved tensor by a copy in pinned
memory. A stream of its own copies to the CPU while the device goes on computing; a tensor is copied back when the
backward pass needs it. With recomputed layers, the saved tensors are the layers' inputs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

SMALLEST = 1 << 20
"""bytes of a tensor below which a copy costs more than it frees"""


class _OnHost(NamedTuple):
    """A copy, and the device of the tensor."""

    copy: Tensor
    device: torch.device


def offloaded(device: str, *, smallest: int = SMALLEST, everywhere: bool = False) -> AbstractContextManager[None]:
    """Within, tensors that autograd saves are kept on the CPU, except parameters, views of a part, and small tensors.

    Args:
        smallest: bytes.
        everywhere: copy on the CPU too, for tests.
    """
    copying = torch.cuda.Stream() if device == "cuda" else None  # type: ignore[no-untyped-call]

    def pack(tensor: Tensor) -> Tensor | _OnHost:
        if not (tensor.is_cuda or everywhere) or _stays(tensor, smallest):
            return tensor
        if copying is None:
            return _OnHost(tensor.detach().clone(memory_format=torch.preserve_format), tensor.device)
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        copying.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copying):
            copy.copy_(tensor.detach(), non_blocking=True)
        tensor.record_stream(copying)
        return _OnHost(copy, tensor.device)

    def unpack(saved: Tensor | _OnHost) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if copying is not None:
            torch.cuda.current_stream().wait_stream(copying)
        return saved.copy.to(saved.device, non_blocking=True)

    hooks: Callable[..., AbstractContextManager[None]] = torch.autograd.graph.saved_tensors_hooks
    return hooks(pack, unpack)


def _stays(tensor: Tensor, smallest: int) -> bool:
    """A parameter, or its view, exists anyway; a part of a storage frees nothing, and its copy has other strides."""
    base = tensor._base if tensor._is_view() else tensor
    size = tensor.numel() * tensor.element_size()
    is_part = size != tensor.untyped_storage().nbytes() and base is not None and size != base.nbytes
    return isinstance(base, nn.Parameter) or size < smallest or is_part or 0 in tensor.stride()
