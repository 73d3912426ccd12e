"""Sums over large (B, T) columns by blocks of rows, whose temporary values stay in the processor's cache.

A sum over masked columns reads them whole: to gather the values of a mask takes many times as long.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

ELEMENTS = 2**18
"""of a column in a block"""


def blocks(mask: Tensor) -> list[slice]:
    """Ranges that cover the rows of a (B, T) column, each of one row or of at most ``ELEMENTS`` elements."""
    rows, width = mask.shape
    step = max(1, ELEMENTS // max(1, width))
    return [slice(first, first + step) for first in range(0, rows, step)]


@dataclass(frozen=True)
class Spread:
    """Sum, count and extremes of values; those of parts add up."""

    total: float = 0.0
    count: int = 0
    least: float = math.inf
    most: float = -math.inf

    def __add__(self, other: "Spread") -> "Spread":
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Spread(self.total + other.total, self.count + other.count, least, most)

    @classmethod
    def of(cls, values: Tensor, mask: Tensor) -> "Spread":
        """Of the values (b, T) of a block where ``mask`` (bool) is true."""
        count = int(torch.count_nonzero(mask))
        if count == 0:
            return cls()
        if count < mask.numel():  # an element that counts takes the place of the others, for the extremes
            inside = values.flatten()[mask.flatten().int().argmax()]
            total = values.masked_fill(~mask, 0.0).sum()
            values = torch.where(mask, values, inside)
        else:
            total = values.sum()
        least, most = torch.aminmax(values)
        return cls(float(total), count, float(least), float(most))

    def metrics(self, name: str) -> dict[str, float]:
        """``NAME/mean``, ``NAME/max`` and ``NAME/min``; none without values."""
        if self.count == 0:
            return {}
        return {f"{name}/mean": self.total / self.count, f"{name}/max": self.most, f"{name}/min": self.least}


def spread(values: Tensor, mask: Tensor) -> Spread:
    """Of the values (B, T) where ``mask`` (bool) is true."""
    return add_spreads(Spread.of(values[rows], mask[rows]) for rows in blocks(mask))


def add_spreads(parts: Iterable[Spread]) -> Spread:
    """Of all parts together."""
    return sum(parts, Spread())
