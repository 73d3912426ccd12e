"""Invariant operations on the CPU, in float32.

BLAS selects kernels by the number of rows, so a matrix product of one token (decoding) and of a whole batch (training)
differ in their last bits. Here every product has one shape, ``ROWS`` rows, padded with zeros, and sums over keys have
one order. Elementwise functions that torch rounds differently in vectors and in their remainders are composed of exact
ones.

Queries and keys of a row are counted from the row's first token. A block of queries meets blocks of keys in products of
one shape, and the sums of the blocks of keys are added in order; keys after the query add exact zeros. So padding, the
other rows, and the number of queries computed at a time (one in decoding, all in training) change nothing.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS = 16
"""rows of every matrix product"""

ALIGNMENT = 64
"""bytes; kernels of other alignments may sum in another order"""

QUERIES, KEYS = 16, 32
"""queries and keys of a block of attention"""


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` in blocks of ``ROWS`` rows."""
    apply: Any = _Linear.apply
    product: Tensor = apply(hidden, weight)
    return product if bias is None else product + bias


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x²) + eps)``: torch computes row by row."""
    exact = hidden.float()
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + eps)
    return weight * exact.to(hidden.dtype)


def silu(hidden: Tensor) -> Tensor:
    """``x / (1 + exp(-x))``: torch's own function rounds differently at the end of a tensor."""
    return hidden / (1 + torch.exp(-hidden))


def gelu_tanh(hidden: Tensor) -> Tensor:
    """The tanh approximation of GELU, from products and ``torch.tanh``."""
    cubic = hidden + 0.044715 * (hidden * hidden * hidden)
    return hidden * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic))


def padded_attention(query: Tensor, key: Tensor, value: Tensor, first: Tensor | None, scale: float) -> Tensor:
    """Causal attention of rows that are padded on the left.

    Args:
        query: (rows, heads, queries, head size), of the last columns; key and value may have fewer heads.
        first: (rows,) column of the first token, None: 0.

    Returns:
        (rows, heads, queries, head size).
    """
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


def packed_attention(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, scale: float) -> Tensor:
    """Causal attention of rows that are packed into one.

    Args:
        query: (1, heads, tokens, head size); key and value may have fewer heads.
        bounds: (rows + 1,) starts of the rows, and the end.

    Returns:
        (1, heads, tokens, head size).
    """
    lengths = (bounds[1:] - bounds[:-1]).tolist()
    rows = zip(*(torch.split(each, lengths, dim=2) for each in (query, key, value)), strict=True)
    return torch.cat([padded_attention(q, k, v, None, scale) for q, k, v in rows], dim=2)


def paged_attention(
    query: Tensor, cache: Tensor, table: Tensor, page: int, starts: Tensor, lengths: Tensor, longest: int, scale: float
) -> Tensor:
    """Causal attention of an engine's requests to their keys and values in pages.

    Args:
        query: (tokens, heads, head size) of all requests, each request's last tokens.
        cache: (slots, 2, heads of keys, head size), keys and values.
        table: (requests, pages) int, each request's pages of ``page`` slots.
        starts: (requests + 1,) int, the first query of each request, and the end.
        lengths: (requests,) int, the keys of each request.
        longest: the largest number of queries of a request.

    Returns:
        (tokens, heads, head size).
    """
    parts = []
    for row, (start, end) in enumerate(itertools.pairwise(starts[: len(lengths) + 1].tolist())):
        slots = (table[row, :, None].long() * page + torch.arange(page)).flatten()[: int(lengths[row])]
        key, value = cache[slots].unbind(1)
        own, key, value = (each.transpose(0, 1)[None] for each in (query[start:end], key, value))
        parts.append(padded_attention(own, key, value, None, scale))
    return torch.cat(parts, dim=2)[0].transpose(0, 1)


class _Linear(torch.autograd.Function):
    """Blocks in the forward pass only: gradients need the same bits in the same batch, not in any batch."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        rows = hidden.reshape(-1, hidden.shape[-1])
        blocks = -(-len(rows) // ROWS)
        padded = pad(rows, (0, 0, 0, blocks * ROWS - len(rows))).view(blocks, ROWS, -1)
        products = torch.bmm(aligned(padded), aligned(weight).t().expand(blocks, -1, -1))
        return products.view(blocks * ROWS, -1)[: len(rows)].view(*hidden.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        by_hidden, by_weight = ctx.needs_input_grad
        rows = gradients[0].reshape(-1, len(weight))
        return (
            (rows @ weight).view(hidden.shape) if by_hidden else None,
            rows.t() @ hidden.reshape(-1, hidden.shape[-1]) if by_weight else None,
        )


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, contiguous, at an address that torch itself would give it."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


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
