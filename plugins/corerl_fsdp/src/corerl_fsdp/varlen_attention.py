"""Attention over packed rows by ``torch.nn.attention.varlen``, under a name of its own in transformers.

A dense mask of packed rows costs the square of their total length; this costs the squares of the rows' lengths, and
needs no package beside torch. CUDA, half precision.
"""

import importlib.util
import inspect
from typing import Any

import torch
from torch import Tensor

NAME = "corerl_varlen"


def available(device: str, dtype: torch.dtype) -> bool:
    """Whether torch brings the kernel and it runs there."""
    half = dtype in (torch.bfloat16, torch.float16)
    return device == "cuda" and half and importlib.util.find_spec("torch.nn.attention.varlen") is not None


def use(model: Any) -> None:
    """Let a transformers model attend by :func:`varlen_attention`, without a mask."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, varlen_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    model.set_attn_implementation(NAME)


def varlen_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row.

    Args:
        query: (1, heads, tokens, head size); key and value may have fewer heads.
        cu_seq_lens_q: (rows + 1,) int32, where each row begins, and the end.

    Returns:
        (1, tokens, heads, head size).
    """
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {"scale": scaling} if "scale" in known else {}
    if "window_size" in known:
        options["window_size"] = (-1 if sliding_window is None else sliding_window - 1, 0)
    elif sliding_window is None:
        options["is_causal"] = True
    else:
        raise NotImplementedError("a sliding window over packed rows needs torch 2.11: use_remove_padding=false")
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and "enable_gqa" in known:
        options["enable_gqa"] = True
    elif groups > 1:
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    query, key, value = (each.squeeze(0).transpose(0, 1) for each in (query, key, value))
    bounds, longest = cu_seq_lens_q, max_length_q
    attended: Any = varlen_attn(query, key, value, bounds, bounds, longest, longest, **options)
    return attended.unsqueeze(0), None


def _no_mask(*arguments: Any, **others: Any) -> None:
    return None
