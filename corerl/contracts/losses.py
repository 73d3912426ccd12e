"""Common parts of policy and value losses: terms for each token, and metrics of parts of a batch, which add up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


M = TypeVar("M", bound="Measure")


class Measure(Protocol):
    """A metric of a part of a batch; the sum of two is that of both parts together."""

    def __add__(self, other: Any) -> Self: ...

    @property
    def count(self) -> "Tensor | float":
        """Of values; the metric of none is left out."""
        ...

    @property
    def value(self) -> float: ...


@dataclass(frozen=True)
class Combined:
    """A metric that is the ``by`` of those of the parts: ``max``, ``min`` or ``operator.add``."""

    value: float
    by: Callable[[float, float], float]
    count: ClassVar[float] = 1

    def __add__(self, other: "Combined") -> "Combined":
        return Combined(self.by(self.value, other.value), self.by)


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


def add_means(sums: dict[str, M], metrics: Mapping[str, M]) -> None:
    """Add metrics to those of the same name."""
    for name, mean in metrics.items():
        sums[name] = sums[name] + mean if name in sums else mean


def measures_of(metrics: Mapping[str, Any]) -> dict[str, Measure | float]:
    """Metrics of a plugin; a number of any library is a float."""
    return {name: each if hasattr(each, "value") else float(each) for name, each in metrics.items()}


def values(metrics: Mapping[str, Measure | float]) -> dict[str, float]:
    """The values of metrics; the metric of none is left out."""
    given = {name: Mean(each, 1) if isinstance(each, int | float) else each for name, each in metrics.items()}
    return {name: each.value for name, each in given.items() if each.count}


@dataclass(frozen=True)
class LossOutput:
    """Per-token terms (b, T) to be minimised, and metrics; a policy loss's ``clipfrac`` becomes ``actor/clipfrac``."""

    terms: "Tensor"
    metrics: Mapping[str, Mean] = field(default_factory=dict)


def masked_mean(values: "Tensor", mask: "Tensor") -> Mean:
    """Sum and count of ``values`` where ``mask`` (bool) is true."""
    return Mean(values.masked_fill(~mask, 0.0).sum(), mask.sum())
