"""Invariant operations on CUDA, in half precision: kernels of triton in which every token has tiles of one shape.

cuBLAS and flash attention select tiles, and split sums, by the number of tokens. Here the tiles are constants, each sum
is computed by one program in ascending order, and what a tile holds beside a token is multiplied with exact zeros.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import silu as torch_silu

ROWS, COLUMNS, DEPTH, GROUP = 128, 128, 64, 8
"""tiles of a matrix product; GROUP: tiles of rows that follow each other before the next tile of columns"""

QUERIES, KEYS = 64, 64
"""rows of a tile of attention, which are queries times heads that share keys; keys of a tile"""

WIDTH = 1024
"""numbers of a row that are added at a time"""

LOG2E = 1.4426950408889634


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear``; the backward pass is torch's own."""
    apply: Any = _Linear.apply
    product: Tensor = apply(hidden, weight, bias)
    return product


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x²) + eps)``."""
    apply: Any = _MeanSquare.apply
    exact = hidden.float() * torch.rsqrt(apply(hidden) + eps)
    return weight * exact.to(hidden.dtype)


def silu(hidden: Tensor) -> Tensor:
    """torch's own: on CUDA each element is computed by itself."""
    return torch_silu(hidden)


def gelu_tanh(hidden: Tensor) -> Tensor:
    """torch's own."""
    return torch.nn.functional.gelu(hidden, approximate="tanh")


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    scale: float,
    plain: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Causal attention of rows that are packed into one.

    Args:
        query: (1, heads, tokens, head size); key and value may have fewer heads.
        bounds: (rows + 1,) int32, starts of the rows, and the end.
        longest: tokens of the longest row.
        plain: the same of query, key and value, differentiable; the backward pass runs it again.

    Returns:
        (1, tokens, heads, head size).
    """
    apply: Any = _PackedAttention.apply
    attended: Tensor = apply(query, key, value, bounds, longest, scale, plain)
    return attended


def paged_attention(
    query: Tensor, cache: Tensor, table: Tensor, page: int, starts: Tensor, lengths: Tensor, longest: int, scale: float
) -> Tensor:
    """Causal attention of an engine's requests to their keys and values in pages.

    Args:
        query: (tokens, heads, head size) of all requests, each request's last tokens.
        cache: (slots, 2, heads of keys, head size), keys and values.
        table: (requests, pages) int32, each request's pages of ``page`` slots.
        starts: (requests + 1,) int32, the first query of each request, and the end.
        lengths: (requests,) int32, the keys of each request.
        longest: the largest number of queries of a request.

    Returns:
        (tokens, heads, head size).
    """
    return _attend(query, cache[:, 0], cache[:, 1], starts, lengths, longest, scale, table, page)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        flat = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        weight = weight.contiguous()
        rows, columns = len(flat), len(weight)
        product = torch.empty(rows, columns, dtype=hidden.dtype, device=hidden.device)
        if rows:
            tiles = triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS)
            _product[(tiles,)](
                flat,
                weight,
                weight if bias is None else bias,
                product,
                rows,
                columns,
                flat.shape[1],
                has_bias=bias is not None,
                tile_rows=ROWS,
                tile_columns=COLUMNS,
                tile_depth=DEPTH,
                group=GROUP,
                num_warps=8,
                num_stages=3,
            )
        return product.view(*hidden.shape[:-1], columns)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        by_hidden, by_weight, by_bias = ctx.needs_input_grad
        rows = gradients[0].reshape(-1, len(weight))
        return (
            (rows @ weight).view(hidden.shape) if by_hidden else None,
            rows.t() @ hidden.reshape(-1, hidden.shape[-1]) if by_weight else None,
            rows.sum(dim=0) if by_bias else None,
        )


class _MeanSquare(torch.autograd.Function):
    """(..., 1) float32 of (..., width)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.save_for_backward(hidden)
        width = hidden.shape[-1]
        flat = hidden.reshape(-1, width).contiguous()
        means = torch.empty(len(flat), dtype=torch.float32, device=hidden.device)
        if len(flat):
            _mean_square[(len(flat),)](flat, means, width, tile=WIDTH, num_warps=4)
        return means.view(*hidden.shape[:-1], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (hidden,) = ctx.saved_tensors
        gradient: Tensor = hidden.float() * (gradients[0] * (2.0 / hidden.shape[-1]))
        return gradient.to(hidden.dtype)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bounds: Tensor,
        longest: int,
        scale: float,
        plain: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.plain = plain
        query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
        return _attend(query, key, value, bounds, None, longest, scale, None, 0)[None]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            again = ctx.plain(*inputs)
        return (*torch.autograd.grad(again, inputs, gradients[0]), None, None, None, None)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    lengths: Tensor | None,
    longest: int,
    scale: float,
    table: Tensor | None,
    page: int,
) -> Tensor:
    """(tokens, heads, head size); without a table, a row's keys are those of its own tokens."""
    tokens, heads, size = query.shape
    shared = heads // key.shape[1]
    block = triton.next_power_of_2(shared)
    result = torch.empty(tokens, heads, size, dtype=query.dtype, device=query.device)
    rows = len(starts) - 1 if lengths is None else len(lengths)
    if not tokens or not rows:
        return result
    grid = (triton.cdiv(longest, QUERIES // block), rows, key.shape[1])
    _attention[grid](
        query,
        key,
        value,
        result,
        starts,
        starts if lengths is None else lengths,
        starts if table is None else table,
        scale * LOG2E,
        *query.stride(),
        *key.stride(),
        *value.stride(),
        *result.stride()[:2],
        0 if table is None else table.stride(0),
        size,
        shared=shared,
        block=block,
        page=page,
        tile_queries=QUERIES,
        tile_keys=KEYS,
        tile_size=max(16, triton.next_power_of_2(size)),  # the least that a product takes
        num_warps=4,
        num_stages=2,
    )
    return result


@triton.jit
def _product(
    hidden,
    weight,
    bias,
    product,
    rows,
    columns,
    depth,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    tile_depth: tl.constexpr,
    group: tl.constexpr,
):
    """A tile of product (rows, columns) = hidden (rows, depth) @ weight (columns, depth).T + bias."""
    row_tiles, column_tiles = tl.cdiv(rows, tile_rows), tl.cdiv(columns, tile_columns)
    number = tl.program_id(0)
    first = number // (group * column_tiles) * group
    height = min(row_tiles - first, group)
    inside = number % (group * column_tiles)
    row = ((first + inside % height) * tile_rows + tl.arange(0, tile_rows)).to(tl.int64)
    column = ((inside // height) * tile_columns + tl.arange(0, tile_columns)).to(tl.int64)
    steps = tl.arange(0, tile_depth)
    total = tl.zeros((tile_rows, tile_columns), dtype=tl.float32)
    for start in range(0, depth, tile_depth):
        at = start + steps
        left = tl.load(
            hidden + row[:, None] * depth + at[None, :], mask=(row[:, None] < rows) & (at[None, :] < depth), other=0.0
        )
        right = tl.load(
            weight + column[None, :] * depth + at[:, None],
            mask=(column[None, :] < columns) & (at[:, None] < depth),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    if has_bias:
        total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    tl.store(
        product + row[:, None] * columns + column[None, :],
        total.to(product.dtype.element_ty),
        mask=(row[:, None] < rows) & (column[None, :] < columns),
    )


@triton.jit
def _mean_square(hidden, means, width, tile: tl.constexpr):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((tile,), dtype=tl.float32)
    for start in range(0, width, tile):
        at = start + tl.arange(0, tile)
        value = tl.load(hidden + row * width + at, mask=at < width, other=0.0).to(tl.float32)
        total += value * value
    tl.store(means + row, tl.sum(total, axis=0) / width)


@triton.jit
def _attention(
    query,
    key,
    value,
    result,
    starts,
    lengths,
    table,
    scale,
    query_token,
    query_head,
    query_size,
    key_token,
    key_head,
    key_size,
    value_token,
    value_head,
    value_size,
    result_token,
    result_head,
    table_row,
    size,
    shared: tl.constexpr,
    block: tl.constexpr,
    page: tl.constexpr,
    tile_queries: tl.constexpr,
    tile_keys: tl.constexpr,
    tile_size: tl.constexpr,
):
    """A tile of queries of one row, times the heads that share keys; ``scale`` includes log2(e)."""
    row, head = tl.program_id(1), tl.program_id(2)
    start = tl.load(starts + row)
    queries = tl.load(starts + row + 1) - start
    keys = queries
    if page > 0:
        keys = tl.load(lengths + row)
    tokens: tl.constexpr = tile_queries // block
    first = tl.program_id(0) * tokens
    if first >= queries:
        return
    inside = tl.arange(0, tile_queries)
    token, member = first + inside // block, inside % block
    sizes = tl.arange(0, tile_size)
    is_real = (token < queries) & (member < shared)
    place = keys - queries + tl.minimum(token, queries - 1)  # the last key that a query sees
    own = query + (start + token).to(tl.int64)[:, None] * query_token
    own += (head * shared + member)[:, None] * query_head + sizes[None, :] * query_size
    asked = tl.load(own, mask=is_real[:, None] & (sizes[None, :] < size), other=0.0)
    largest = tl.full((tile_queries,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((tile_queries,), dtype=tl.float32)
    summed = tl.zeros((tile_queries, tile_size), dtype=tl.float32)
    end = keys - queries + tl.minimum(first + tokens, queries)
    for begin in range(0, end, tile_keys):
        at = begin + tl.arange(0, tile_keys)
        if page > 0:
            pages = tl.load(table + row * table_row + at // page, mask=at < keys, other=0)
            slot = pages.to(tl.int64) * page + at % page
        else:
            slot = (start + at).to(tl.int64)
        seen = (at < keys)[:, None] & (sizes[None, :] < size)
        their = tl.load(key + slot[:, None] * key_token + head * key_head + sizes[None, :] * key_size, seen, other=0.0)
        scores = tl.dot(asked, tl.trans(their)) * scale
        scores = tl.where(at[None, :] <= place[:, None], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp2(largest - larger)
        weights = tl.exp2(scores - larger[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        states = tl.load(
            value + slot[:, None] * value_token + head * value_head + sizes[None, :] * value_size, seen, other=0.0
        )
        summed = summed * shrink[:, None]
        summed = tl.dot(weights.to(states.dtype), states, summed)
        largest = larger
    place_of = result + (start + token).to(tl.int64)[:, None] * result_token
    place_of += (head * shared + member)[:, None] * result_head + sizes[None, :]
    answer = summed / total[:, None]
    tl.store(place_of, answer.to(result.dtype.element_ty), mask=is_real[:, None] & (sizes[None, :] < size))
