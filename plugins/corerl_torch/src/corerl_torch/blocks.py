"""Sums over large (B, T) columns by blocks of rows, whose temporary values stay in the processor's cache.

A sum over masked columns reads them whole: to gather the values of a mask takes many times as long.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.contracts.losses import Combined, Mean, Measure

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

    def metrics(self, name: str) -> dict[str, Measure]:
        """``NAME/mean``, ``NAME/max`` and ``NAME/min``; none without values."""
        if self.count == 0:
            return {}
        return {
            f"{name}/mean": Mean(self.total, self.count),
            f"{name}/max": Combined(self.most, max),
            f"{name}/min": Combined(self.least, min),
        }


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared differences from the mean of values; those of parts add up.

    Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance", equation 2.1.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def __add__(self, other: "Moments") -> "Moments":
        count, apart = self.count + other.count, other.mean - self.mean
        share = other.count / max(1, count)
        squares = self.squares + other.squares + apart * apart * self.count * share
        return Moments(count, self.mean + apart * share, squares)

    @property
    def variance(self) -> float:
        """Not corrected for the mean; 0 of nothing."""
        return self.squares / max(1, self.count)


def moments(values: Tensor, mask: Tensor) -> Moments:
    """Of the values (B, T) where ``mask`` (bool) is true."""
    found = Moments()
    for rows in blocks(mask):
        part = Spread.of(values[rows], mask[rows])
        mean = part.total / max(1, part.count)
        squares = (values[rows] - mean).square_().masked_fill_(~mask[rows], 0.0).sum()
        found += Moments(part.count, mean, float(squares))
    return found


def spread(values: Tensor, mask: Tensor) -> Spread:
    """Of the values (B, T) where ``mask`` (bool) is true."""
    return add_spreads(Spread.of(values[rows], mask[rows]) for rows in blocks(mask))


def add_spreads(parts: Iterable[Spread]) -> Spread:
    """Of all parts together."""
    return sum(parts, Spread())
