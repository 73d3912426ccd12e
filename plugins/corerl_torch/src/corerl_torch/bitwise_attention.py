"""Causal attention of blocks: the result of a query depends on its own row's keys alone, bit for bit.

Queries and keys of a row are counted from the row's first token. A block of queries meets blocks of keys in products of
one shape, and the sums of the blocks of keys are added in order; keys after the query add exact zeros. So padding, the
other rows, and the number of queries computed at a time (one in decoding, all in training) change nothing.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

NAME = "corerl_bitwise"

QUERIES, KEYS = 16, 32
"""queries and keys of a block"""


def keep_mask(*arguments: Any, attention_mask: Tensor | None = None, **others: Any) -> Tensor | None:
    """The (rows, columns) mask itself, true on tokens: it gives the first column of each row."""
    return attention_mask


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it.

    Args:
        query: (rows, heads, queries, head size), of the last columns; key and value may have fewer heads.
        attention_mask: (rows, columns) bool, false on padding on the left; None: no padding there.
        cu_seq_lens_q: (packed rows + 1,) starts of the rows that are packed into one, and the end.

    Returns:
        (rows, queries, heads, head size).
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if cu_seq_lens_q is not None:
        queries, keys, values = (_unpacked(each, cu_seq_lens_q) for each in (query, key, value))
        rows = zip(queries, keys, values, strict=True)
        return torch.cat([_attend(q, k, v, None, scale) for q, k, v in rows], dim=2).transpose(1, 2), None
    first = None if attention_mask is None else attention_mask.to(torch.int8).argmax(dim=1)
    return _attend(query, key, value, first, scale).transpose(1, 2), None


def _unpacked(states: Tensor, bounds: Tensor) -> tuple[Tensor, ...]:
    return torch.split(states, (bounds[1:] - bounds[:-1]).tolist(), dim=2)


def _attend(query: Tensor, key: Tensor, value: Tensor, first: Tensor | None, scale: float) -> Tensor:
    """(rows, heads, queries, head size); ``first``: (rows,) column of the first token, None: 0."""
    heads, queries = query.shape[1:3]
    columns = key.shape[2]
    places = torch.arange(columns - queries, columns)[None]
    if first is not None:
        places = (places - first[:, None]).clamp(min=0)  # of padding: any finite result
        key, value = _from_first(key, first), _from_first(value, first)
    key, value = (_blocks_of_keys(each, heads) for each in (key, value))
    parts = []
    for start in range(0, queries, QUERIES):
        own = places[:, start : start + QUERIES]
        blocks = min(int(own.max()) // KEYS + 1, key.shape[2])
        block = query[:, :, start : start + QUERIES] * scale
        parts.append(_block_of_queries(block, key[:, :, :blocks], value[:, :, :blocks], own))
    return torch.cat(parts, dim=2)


def _from_first(states: Tensor, first: Tensor) -> Tensor:
    """Columns moved to the left by ``first``; those that come in from the right are after every query."""
    columns = (torch.arange(states.shape[2]) + first[:, None]).clamp(max=states.shape[2] - 1)
    return states.gather(2, columns[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3]))


def _blocks_of_keys(states: Tensor, heads: int) -> Tensor:
    """(rows, heads, blocks, KEYS, head size), filled with 0."""
    states = pad(states, (0, 0, 0, -states.shape[2] % KEYS))
    repeated = states.repeat_interleave(heads // states.shape[1], dim=1)
    return repeated.view(*repeated.shape[:2], -1, KEYS, states.shape[3])


def _block_of_queries(query: Tensor, key: Tensor, value: Tensor, places: Tensor) -> Tensor:
    """The attention of at most QUERIES queries to blocks of keys.

    Args:
        query: (rows, heads, queries, head size), scaled.
        key, value: (rows, heads, blocks, KEYS, head size).
        places: (rows or 1, queries), the last key that each query sees.
    """
    queries = query.shape[2]
    blocks = key.shape[2]
    filled = pad(query, (0, 0, 0, QUERIES - queries))[:, :, None].expand(-1, -1, blocks, -1, -1)
    scores = _products(filled, key.transpose(-1, -2))  # (rows, heads, blocks, QUERIES, KEYS)
    last = pad(places, (0, QUERIES - queries))
    keys = torch.arange(blocks * KEYS).view(blocks, 1, KEYS)
    seen = (keys <= last[:, None, :, None])[:, None]  # (rows or 1, 1, blocks, QUERIES, KEYS)
    scores = scores.masked_fill(~seen, -torch.inf)
    largest = scores.detach().amax(dim=(2, 4), keepdim=True)
    weights = torch.exp(scores - largest)
    sums, totals = _products(weights, value), weights.sum(dim=-1)
    result, total = sums[:, :, 0], totals[:, :, 0]
    for block in range(1, blocks):
        result, total = result + sums[:, :, block], total + totals[:, :, block]
    return (result / total[..., None])[:, :, :queries]


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Products of the last two dimensions, each of the same shape whatever the number of products."""
    shape = left.shape[:-2]
    product = torch.bmm(left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:]))
    return product.view(*shape, *product.shape[-2:])
