"""The kernel of triton: queries and keys are read and written once, and computed in float32.

The operation is opaque to ``torch.compile``: as a ``triton_op``, torch 2.11 cannot compile passes without gradients.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

TOKENS = 16
"""of a program, which has one head of each"""


@custom_op("corerl::rotary", mutates_args=(), device_types="cuda")
def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, backwards: bool = False) -> tuple[Tensor, Tensor]:
    """x cos + (-x₂, x₁) sin of the halves x₁ and x₂ of a head, in the dtype of x.

    Args:
        q: (B, T, heads, D), contiguous, in half precision; D is a power of 2.
        k: (B, T, heads, D), likewise.
        cos: (B, T, D), in the same dtype.
        sin: (B, T, D), likewise.
        backwards: of gradients: x cos + (x₂ sin₂, -x₁ sin₁).
    """
    turned = torch.empty_like(q), torch.empty_like(k)
    tokens, heads, head = q.shape[0] * q.shape[1], q.shape[2], q.shape[3]

    def grid(given: Any) -> tuple[int, int]:
        return triton.cdiv(tokens, TOKENS), heads + k.shape[2]

    _rotary[grid](q, k, cos, sin, *turned, tokens, heads, k.shape[2], HEAD=head, TOKENS=TOKENS, BACKWARDS=backwards)
    return turned


@rotary.register_fake
def _shapes(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, backwards: bool = False) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[2], inputs[3])


def _gradients(ctx: Any, of_q: Tensor, of_k: Tensor) -> tuple[Tensor | None, ...]:
    q, k = rotary(of_q.contiguous(), of_k.contiguous(), *ctx.saved_tensors, True)
    return q, k, None, None, None


rotary.register_autograd(_gradients, setup_context=_keep)


@triton.jit  # type: ignore[untyped-decorator]
def _rotary(  # type: ignore[no-untyped-def]  # triton reads annotations
    q,
    k,
    cos,
    sin,
    of_q,
    of_k,
    tokens,
    heads,
    key_heads,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    BACKWARDS: tl.constexpr,
):
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
    head = tl.program_id(1)
    half: tl.constexpr = HEAD // 2
    first = tl.arange(0, half)[None, :]
    inside = token < tokens
    cos1 = tl.load(cos + token * HEAD + first, mask=inside, other=0.0).to(tl.float32)
    cos2 = tl.load(cos + token * HEAD + half + first, mask=inside, other=0.0).to(tl.float32)
    sin1 = tl.load(sin + token * HEAD + first, mask=inside, other=0.0).to(tl.float32)
    sin2 = tl.load(sin + token * HEAD + half + first, mask=inside, other=0.0).to(tl.float32)
    if head < heads:
        place = (token * heads + head) * HEAD + first
        x1 = tl.load(q + place, mask=inside, other=0.0).to(tl.float32)
        x2 = tl.load(q + place + half, mask=inside, other=0.0).to(tl.float32)
    else:
        place = (token * key_heads + head - heads) * HEAD + first
        x1 = tl.load(k + place, mask=inside, other=0.0).to(tl.float32)
        x2 = tl.load(k + place + half, mask=inside, other=0.0).to(tl.float32)
    if BACKWARDS:
        y1 = x1 * cos1 + x2 * sin2
        y2 = x2 * cos2 - x1 * sin1
    else:
        y1 = x1 * cos1 - x2 * sin1
        y2 = x2 * cos2 + x1 * sin2
    element = of_q.dtype.element_ty
    if head < heads:
        tl.store(of_q + place, y1.to(element), mask=inside)
        tl.store(of_q + place + half, y2.to(element), mask=inside)
    else:
        tl.store(of_k + place, y1.to(element), mask=inside)
        tl.store(of_k + place + half, y2.to(element), mask=inside)
