"""KL controllers: the weight of the KL penalty in the reward, from step to step."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from corerl.contracts.experience import Experience


class KLController(Protocol):
    """A pure function; the trainer holds the coefficient and saves it. With options it takes ``options``.

    Args:
        coef: beta of this step, at least 0.
        kl: this step's KL term, mean over tokens, then over responses; negative values occur with k1, for example.
        responses: number of responses of the mean.

    Returns:
        beta of the next step: finite, at least 0, and never lower for a larger ``kl``.
    """

    def __call__(self, coef: float, kl: float, responses: int) -> float: ...


class KLPenalty(Protocol):
    """Made once a run by the hook ``make_kl_penalty``; ``coef``, beta of the next step, is kept in checkpoints."""

    coef: float

    def subtract(self, experience: "Experience") -> dict[str, float]:
        """Subtract beta · KL from ``experience.rewards``, and move beta; the metrics."""
        ...
