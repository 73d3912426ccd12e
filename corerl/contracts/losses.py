"""Common parts of policy and value losses: terms for each token, and metrics that are means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Mean:
    """A metric as sum and count: any partition of a batch gives the same mean."""

    total: "Tensor | float"
    count: "Tensor | float"

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean; 0 of nothing."""
        return float(self.total) / float(self.count) if self.count else 0.0


def add_means(sums: dict[str, Mean], metrics: Mapping[str, Mean]) -> None:
    """Add metrics to those of the same name."""
    for name, mean in metrics.items():
        sums[name] = sums[name] + mean if name in sums else mean


@dataclass(frozen=True)
class LossOutput:
    """Per-token terms (b, T) to be minimised, and metrics; a policy loss's ``clipfrac`` becomes ``actor/clipfrac``."""

    terms: "Tensor"
    metrics: Mapping[str, Mean] = field(default_factory=dict)


def masked_mean(values: "Tensor", mask: "Tensor") -> Mean:
    """Sum and count of ``values`` where ``mask`` (bool) is true."""
    return Mean(values.masked_fill(~mask, 0.0).sum(), mask.sum())
