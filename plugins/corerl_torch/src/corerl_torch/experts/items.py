"""Items of rows: copies of the rows of a matrix, sorted by their destination, and the sum of items by row.

The two operations are each other's gradient. Neither adds by atomics: each sum has one order, so results repeat.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Items(NamedTuple):
    """``n`` items of ``m`` rows.

    Attributes:
        rows: (n,) int64, row of each item.
        by_row: (n,) int64, the items in the order of their rows.
        bounds: (m + 1,) int64, ends of the rows in ``by_row``, after a 0.
    """

    rows: Tensor
    by_row: Tensor
    bounds: Tensor

    @classmethod
    def of(cls, rows: Tensor, count: int) -> "Items":
        """
        Args:
            rows: (n,) int64.
            count: m.
        """
        sizes = torch.zeros(count + 1, dtype=torch.int64, device=rows.device)
        sizes.scatter_add_(0, rows + 1, torch.ones_like(rows))
        return cls(rows, torch.argsort(rows, stable=True), sizes.cumsum(0))

    @classmethod
    def sorted(cls, order: Tensor, each: int) -> "Items":
        """``each`` items of every row, sorted: ``order`` (m * each,) holds places in (m, each), flattened."""
        places = torch.arange(len(order), device=order.device)
        by_row = torch.empty_like(order).scatter_(0, order, places)
        bounds = torch.arange(0, len(order) + 1, each, device=order.device)
        return cls(order // each, by_row, bounds)

    def spread(self, states: Tensor) -> Tensor:
        """(n, K) items of the (m, K) rows; differentiable."""
        spread: Tensor = _Spread.apply(states, *self)  # type: ignore[no-untyped-call]
        return spread

    def collect(self, items: Tensor) -> Tensor:
        """(m, K) sums of the (n, K) items by row, added in float32 or better; differentiable."""
        collected: Tensor = _Collect.apply(items, *self)  # type: ignore[no-untyped-call]
        return collected


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, rows: Tensor, by_row: Tensor, bounds: Tensor) -> Tensor:
        ctx.save_for_backward(by_row, bounds)
        return states.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _sums(gradient, *ctx.saved_tensors), None, None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor, rows: Tensor, by_row: Tensor, bounds: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return _sums(items, by_row, bounds)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (rows,) = ctx.saved_tensors
        return gradient.index_select(0, rows), None, None, None


def _sums(items: Tensor, by_row: Tensor, bounds: Tensor) -> Tensor:
    if items.is_cuda and items.dtype != torch.float64:
        from corerl_torch.experts.kernels import row_sums

        return row_sums(items, by_row, bounds)
    if not len(items):
        return items.new_zeros(len(bounds) - 1, items.shape[1])
    return torch.nn.functional.embedding_bag(by_row, items, bounds, mode="sum", include_last_offset=True)
