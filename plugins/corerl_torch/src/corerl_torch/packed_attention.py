"""Attention over packed rows, registered under a name of its own in transformers.

A mask that separates the rows costs the square of their total length. Here each row attends only to itself: in half
precision on CUDA with ``torch.nn.attention.varlen``, otherwise row by row. No package beside torch is needed. Rows of a
trie (:mod:`corerl_torch.tries`) attend to the keys of their common prefix and to their own.
"""

import importlib
import importlib.util
import inspect
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.errors import ConfigError
from corerl_torch.context_parallel import RowGroup

NAME = "corerl_packed"

KERNEL = "which on CUDA is torch's own flash attention"


class Rows(NamedTuple):
    """Bounds of the queries and keys of each row, (rows + 1,) int32 each, and the longest of both."""

    queries: Tensor
    longest: int
    keys: Tensor
    longest_keys: int


varlen_attn: Any = None
KNOWN: frozenset[str] = frozenset()
"""torch's function and its parameters, which differ between versions; loaded when a model on CUDA needs it"""


def use(model: Any, attn_implementation: str, sharing: RowGroup | None = None, *, outside_graphs: bool = False) -> None:
    """Make a transformers model separate packed rows: by flash attention if requested, otherwise by this module.

    Args:
        sharing: the ranks that share the rows.
        outside_graphs: exclude the attention from ``torch.compile``, which cannot trace it row by row or over ranks.

    Raises:
        ConfigError: another attention, or one that cannot be spread over ranks.
    """
    if "flash" in attn_implementation and sharing is None:
        return  # transformers passes the bounds of the rows
    if attn_implementation != "sdpa":
        what = "keep packed rows apart" if sharing is None else f"be spread over {sharing.size} ranks"
        raise ConfigError(
            "model.attn_implementation",
            f"{attn_implementation} cannot {what}: use sdpa, "
            + ("flash attention, or the strategy's option use_remove_padding=false" if sharing is None else KERNEL),
        )
    from transformers import AttentionInterface

    if torch.cuda.is_available():
        find_kernel()
    name: str = NAME
    function: Callable[..., tuple[Tensor, None]] = packed_attention
    if sharing is not None:
        name, function = f"{NAME}_{sharing.name}", _over_ranks(sharing)
    if outside_graphs:
        disable: Any = torch.compiler.disable
        name, function = f"{name}_outside_graphs", disable(function)
    AttentionInterface.register(name, function)  # for which transformers makes no mask
    model.set_attn_implementation(_of_text(model.config, name))


def _of_text(config: Any, name: str) -> str | dict[str, str]:
    """The attention of the language model alone: a vision tower keeps its own."""
    text = config.get_text_config()
    parts = [part for part in config.sub_configs if getattr(config, part, None) is text]
    return {parts[0]: name} if parts and text is not config else name


def find_kernel() -> None:
    """Load torch's function, for models on CUDA."""
    global varlen_attn, KNOWN
    if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
        KNOWN = frozenset(inspect.signature(varlen_attn).parameters)


def _over_ranks(sharing: RowGroup) -> Callable[..., tuple[Tensor, None]]:
    """:func:`packed_attention` of ranks that share rows; inputs and outputs are this rank's tokens, all heads.

    By heads, a rank computes those of all tokens of its part of the context; by context, with the keys of all tokens.
    """
    heads, context = sharing.heads, sharing.context

    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *arguments: Any,
        key_index: Tensor | None = None,
        s_aux: Tensor | None = None,
        **named: Any,
    ) -> tuple[Tensor, None]:
        if heads is not None:
            query, key, value = (heads.tokens_for_heads(each) for each in (query, key, value))
            s_aux = None if s_aux is None else s_aux.chunk(heads.size)[heads.rank]
        if context is not None:
            assert key_index is not None
            key, value = context.gather_keys(key, value, key_index)
        attended, _ = packed_attention(module, query, key, value, *arguments, s_aux=s_aux, **named)
        return attended if heads is None else heads.heads_for_tokens(attended), None

    return attention


def packed_attention(
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
    cu_seq_lens_k: Tensor | None = None,
    max_length_k: int | None = None,
    key_index: Tensor | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row.

    Args:
        query: (1, heads, tokens, head size); key and value may have fewer heads.
        cu_seq_lens_q: (rows + 1,) int32, the start of each row, and the end.
        sliding_window: number of tokens that a token sees, itself included; None: all.
        cu_seq_lens_k, max_length_k: bounds of the keys of each row; the last token of a row has the row's last key.
            None: each token is a key.
        key_index: (keys,) int64, the token of each key, of rows of a trie
            (:func:`~corerl_torch.tries.shared_prefixes`).
        s_aux: (heads,), the logit of each head's sink, which takes a share of the attention and adds nothing.

    Returns:
        (1, tokens, heads, size of a value's head).

    Raises:
        NotImplementedError: the model caps its scores or adds a bias to them.
    """
    if softcap is not None or position_bias is not None:
        raise NotImplementedError("attention over packed rows has no soft-capping and no bias of positions")
    if query.is_cuda and torch.is_autocast_enabled("cuda"):  # rotary positions of float32 states are float32
        query, key, value = (each.to(torch.get_autocast_dtype("cuda")) for each in (query, key, value))
    if key_index is not None:
        key, value = _gathered(key, key_index), _gathered(value, key_index)
    keys = cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k
    rows = Rows(cu_seq_lens_q, max_length_q, keys, max_length_q if max_length_k is None else max_length_k)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and KNOWN and s_aux is None:
        return _by_kernel(query, key, value, rows, scaling, sliding_window), None
    return _row_by_row(query, key, value, rows, scaling, sliding_window, s_aux), None


def _gathered(states: Tensor, index: Tensor) -> Tensor:
    """(1, heads, keys, size) of (1, heads, tokens, size); a token's gradients are summed in float32 at least."""
    exact = states.to(torch.promote_types(states.dtype, torch.float32))
    chosen = exact.transpose(1, 2).index_select(1, index)
    return chosen.to(states.dtype).transpose(1, 2)


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, rows: Rows, scaling: float | None, sliding_window: int | None
) -> Tensor:
    """If a row has more keys than queries, the kernel aligns the causal mask to the last of both."""
    options: dict[str, Any] = {"scale": scaling} if "scale" in KNOWN else {}
    if "window_size" in KNOWN:
        options["window_size"] = (-1 if sliding_window is None else sliding_window - 1, 0)
    elif sliding_window is None:
        options["is_causal"] = True
    else:
        return _row_by_row(query, key, value, rows, scaling, sliding_window)
    if "enable_gqa" in KNOWN:  # the kernel of versions without the option takes fewer heads of keys, too
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    size = value.shape[-1]
    if size != query.shape[-1]:  # the kernel knows one size of heads
        value = torch.nn.functional.pad(value, (0, query.shape[-1] - size))
    query, key, value = (each.squeeze(0).transpose(0, 1) for each in (query, key, value))
    bounds = (rows.queries, rows.keys, rows.longest, rows.longest_keys)
    result: Tensor = varlen_attn(query, key, value, *bounds, **options).unsqueeze(0)
    return result[..., :size]


def _row_by_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    scaling: float | None,
    sliding_window: int | None,
    sinks: Tensor | None = None,
) -> Tensor:
    key, value = _every_head(query, key, value)
    attended = []
    spans = (itertools.pairwise(bounds.tolist()) for bounds in (rows.queries, rows.keys))
    for queries, keys in zip(*spans, strict=True):
        own = query[:, :, slice(*queries)], key[:, :, slice(*keys)], value[:, :, slice(*keys)]
        seen = _seen(queries[1] - queries[0], keys[1] - keys[0], sliding_window, query.device)
        if sinks is not None:
            attended.append(_with_sinks(*own, seen, sinks, scaling))
            continue
        attended.append(
            torch.nn.functional.scaled_dot_product_attention(
                *own, attn_mask=seen, is_causal=seen is None, scale=scaling
            )
        )
    return torch.cat(attended, dim=2).transpose(1, 2)


def _with_sinks(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, sinks: Tensor, scaling: float | None
) -> Tensor:
    """Attention of one row in which each head has one more key: a score of its own, and the value 0."""
    queries, keys = query.shape[2], key.shape[2]
    if seen is None:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    bias = torch.zeros_like(seen, dtype=query.dtype).masked_fill(~seen, float("-inf"))
    own = sinks.to(query.dtype)[:, None, None].expand(-1, queries, 1)
    key, value = (torch.nn.functional.pad(each, (0, 0, 0, 1)) for each in (key, value))
    scores = torch.cat([bias.expand(len(sinks), -1, -1), own], dim=-1)[None]
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=scores, scale=scaling)


def _seen(queries: int, keys: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """(queries, keys) bool, the keys that each query reads: the last query reads the last key; None: causal."""
    windowed = sliding_window is not None and keys > sliding_window
    if queries == keys and not windowed:
        return None
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return seen.triu(keys - queries + 1 - sliding_window) if sliding_window is not None else seen


def _every_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value, repeated to the number of heads of the query."""
    groups = query.shape[1] // key.shape[1]
    return key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
