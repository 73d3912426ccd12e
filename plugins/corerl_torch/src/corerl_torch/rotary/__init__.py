"""The rotary embedding of compiled layers on CUDA in half precision, by a kernel of triton.

``torch.compile`` makes a kernel of it that takes two to ten times as long as its reads and writes
(docs/performance/one-gpu.md). The kernel here takes as long as these, and gives the same bits.
"""

import importlib
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

NAME = "apply_rotary_pos_emb"
"""transformers' function of two (B, heads, T, D) tensors, and (B, T, D) cosines and sines"""

Pair = tuple[Tensor, Tensor]


def use(layers: Any) -> None:
    """Replace the function in the modules of the layers' attention; it stays as it was for what is not compiled.

    Functions that compute something else, such as embeddings of a part of a head or of neighbours, are left.

    Args:
        layers: decoder layers of a transformers model.
    """
    for module in {type(part).__module__ for layer in layers for part in layer.modules()}:
        own: Any = sys.modules[module]
        function = getattr(own, NAME, None)
        if function is not None and not hasattr(function, "uncompiled") and is_plain(function):
            setattr(own, NAME, by_kernel(function))


def is_plain(function: Callable[..., Any]) -> bool:
    """Whether a function computes x cos + (-x₂, x₁) sin of the halves x₁ and x₂ of a head."""
    generator = torch.Generator().manual_seed(0)
    q, k, cos, sin = (
        torch.rand(shape, dtype=torch.float64, generator=generator) - 0.5
        for shape in ((1, 3, 5, 8), (1, 2, 5, 8), (1, 5, 8), (1, 5, 8))
    )
    try:
        given = function(q, k, cos, sin)
        return all(torch.equal(each, turned(x, cos, sin)) for each, x in zip(given, (q, k), strict=True))
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The plain embedding."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)


def by_kernel(function: Callable[..., Pair]) -> Callable[..., Pair]:
    """The function for compiled layers; ``uncompiled`` is the original one."""
    kernel: Any = importlib.import_module("corerl_torch.rotary.kernel")  # triton is there on CUDA only

    @wraps(function)
    def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> Pair:
        if not torch.compiler.is_compiling() or more or named or not suits(q, k, cos, sin):
            return function(q, k, cos, sin, *more, **named)
        given = (each.transpose(1, 2).contiguous() for each in (q, k))
        of_q, of_k = kernel.rotary(*given, cos.contiguous(), sin.contiguous())
        return of_q.transpose(1, 2), of_k.transpose(1, 2)

    named: Any = rotary
    named.uncompiled = function
    return rotary


def suits(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the kernel is for these tensors."""
    head = q.shape[-1]
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.dtype == k.dtype == cos.dtype == sin.dtype
        and head >= 16
        and head & (head - 1) == 0
        and head == k.shape[-1] == cos.shape[-1]
        and q.shape[0] == cos.shape[0]
        and not cos.requires_grad
    )
