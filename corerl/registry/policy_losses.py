"""Policy losses: per-token terms; the core alone reduces them to a scalar."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PolicyLossInputs:
    """What a loss is given; b responses of one micro-batch, T response tokens.

    Attributes:
        log_probs: (b, T) float32, log pi of the sampled tokens under the policy being trained; carries the gradient.
        old_log_probs: (b, T) float32, log pi_old, under the policy at the start of the step.
        advantages: (b, T) float32.
        response_mask: (b, T) bool. Elsewhere the other tensors are 0 and the terms are ignored.
        rollout_log_probs: (b, T) float32 as the rollout backend reported them, when it does.
    """

    log_probs: "Tensor"
    old_log_probs: "Tensor"
    advantages: "Tensor"
    response_mask: "Tensor"
    rollout_log_probs: "Tensor | None" = None


@dataclass(frozen=True)
class Mean:
    """A metric that is a mean: its sum and its count, so that any partition of the batch gives the same number."""

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
class PolicyLossOutput:
    """Per-token terms (b, T), to be minimised, and metrics; ``clipfrac`` becomes ``actor/clipfrac``."""

    terms: "Tensor"
    metrics: Mapping[str, Mean] = field(default_factory=dict)


class PolicyLoss(Protocol):
    """A function of each response alone: the terms of one row do not depend on which rows stand beside it.

    A sequence-level loss spreads its term over the row's tokens, so that the aggregation gives the paper's formula.
    With options it also takes ``options``, an instance of the dataclass it was registered with.
    """

    def __call__(self, inputs: PolicyLossInputs) -> PolicyLossOutput: ...
