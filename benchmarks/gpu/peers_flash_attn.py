"""The package ``flash_attn`` for verl on a machine without it: torch's own FlashAttention-2 under its names.

``install(folder)`` writes a package of that name, with this file as its content, for PYTHONPATH. flash-attn has no
wheel on PyPI, and verl without it is slow for a wrong reason: transformers computes attention over a packed batch under
a mask of tokens × tokens, and verl takes log-probs token by token. Here attention is
``torch.nn.attention.varlen.varlen_attn``, which is the same kernel compiled into torch (strategy ``fsdp`` of CoreRL
calls it, too), and the cross entropy one pass of Triton forward and one backward, as flash-attn's. No value of verl is
changed. Arguments that Qwen2.5's training does not use raise an error.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # on a CPU without Triton only the padding functions are of use
    triton = None

__version__ = "2.8.3"
FILES = {
    "flash_attn/bert_padding.py": "from flash_attn import index_first_axis, pad_input, rearrange, unpad_input\n",
    "flash_attn/ops/__init__.py": "",
    "flash_attn/ops/triton/__init__.py": "",
    "flash_attn/ops/triton/cross_entropy.py": "from flash_attn import cross_entropy_loss\n",
    f"flash_attn-{__version__}.dist-info/METADATA": (
        f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {__version__}\nSummary: torch's kernels, for a benchmark\n"
    ),
    f"flash_attn-{__version__}.dist-info/top_level.txt": "flash_attn\n",
    f"flash_attn-{__version__}.dist-info/RECORD": "flash_attn/__init__.py,,\n",
}
"""transformers looks for a distribution of that name which owns a module of that name."""


def install(folder: Path) -> Path:
    """Write the package; the folder belongs on PYTHONPATH."""
    for name, text in (FILES | {"flash_attn/__init__.py": Path(__file__).read_text(encoding="utf-8")}).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | Tensor,
    max_seqlen_k: int | Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """(tokens, heads, size) of packed sequences; k and v may have fewer heads."""
    from torch.nn.attention.varlen import varlen_attn

    left, right = window_size
    result: Tensor = varlen_attn(  # type: ignore[assignment, unused-ignore]
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        int(max_seqlen_q),
        int(max_seqlen_k),
        scale=softmax_scale,
        window_size=(left, 0 if causal else right),
    )
    return result


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """(batch, tokens, heads, size), all of one length."""
    batch, length, others = q.shape[0], q.shape[1], k.shape[1]
    starts, key_starts = (
        torch.arange(0, (batch + 1) * each, each, dtype=torch.int32, device=q.device) for each in (length, others)
    )
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    out = flash_attn_varlen_func(q, k, v, starts, key_starts, length, others, softmax_scale, causal, window_size)
    return out.view(batch, length, *out.shape[1:])


def flash_attn_with_kvcache(*_: Any, **__: Any) -> Tensor:
    raise NotImplementedError("this stand-in for flash-attn has no attention over a cache: vLLM generates")


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    return values[indices]


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> tuple[Any, ...]:
    """Kept rows, their indices, cumulative lengths, the largest length, lengths."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    bounds = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[indices], indices, bounds, int(lengths.max()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).view(batch, seqlen, *hidden_states.shape[1:])


def rearrange(*arguments: Any, **sizes: Any) -> Any:
    import einops

    return einops.rearrange(*arguments, **sizes)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _losses(logits, labels, losses, totals, stride, columns, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        highest = tl.full((), float("-inf"), tl.float32)
        total = tl.zeros((), tl.float32)
        for first in range(0, columns, block):
            places = first + tl.arange(0, block)
            values = tl.load(logits + row * stride + places, mask=places < columns, other=float("-inf")).to(tl.float32)
            larger = tl.maximum(highest, tl.max(values, 0))
            total = total * tl.exp(highest - larger) + tl.sum(tl.exp(values - larger), 0)
            highest = larger
        total = highest + tl.log(total)
        label = tl.load(labels + row)
        tl.store(totals + row, total)
        tl.store(losses + row, total - tl.load(logits + row * stride + label).to(tl.float32))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _gradients(logits, labels, totals, given, out, stride, step, out_stride, columns, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        places = tl.program_id(1) * block + tl.arange(0, block)
        inside = places < columns
        values = tl.load(logits + row * stride + places, mask=inside, other=0.0).to(tl.float32)
        chances = tl.exp(values - tl.load(totals + row))
        label = tl.load(labels + row)
        gradients = tl.where(places == label, chances - 1.0, chances) * tl.load(given + row * step)
        tl.store(out + row * out_stride + places, gradients.to(out.dtype.element_ty), mask=inside)


class _CrossEntropy(torch.autograd.Function):
    BLOCK = 4096

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace: bool) -> Tensor:
        rows, columns = logits.shape
        if logits.stride(-1) != 1:
            logits = logits.contiguous()
        losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
        totals = torch.empty_like(losses)
        _losses[(rows,)](logits, labels, losses, totals, logits.stride(0), columns, _CrossEntropy.BLOCK, num_warps=8)
        ctx.save_for_backward(logits, labels, totals)
        ctx.inplace = inplace
        return losses

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None]:
        logits, labels, totals = ctx.saved_tensors
        rows, columns = logits.shape
        out = logits if ctx.inplace else torch.empty_like(logits)
        grid = (rows, -(-columns // _CrossEntropy.BLOCK))
        strides = logits.stride(0), given[0].stride(0), out.stride(0)
        _gradients[grid](logits, labels, totals, given[0], out, *strides, columns, _CrossEntropy.BLOCK, num_warps=8)
        return out, None, None


def cross_entropy_loss(logits: Tensor, labels: Tensor, inplace_backward: bool = False) -> tuple[Tensor, Tensor]:
    """Losses (rows,) in float32, and zeros for the squared log-partition, which has weight 0."""
    losses: Tensor = _CrossEntropy.apply(logits, labels, inplace_backward)  # type: ignore[no-untyped-call]
    return losses, torch.zeros_like(losses)
