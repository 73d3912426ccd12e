"""KL controllers: how the weight of the KL penalty in the reward changes from step to step."""

from typing import Protocol


class KLController(Protocol):
    """A pure function; the trainer holds the coefficient and keeps it in the checkpoint.

    With options it also takes ``options``, an instance of the dataclass it was registered with.

    Args:
        coef: beta of this step, at least 0.
        kl: this step's mean over responses of the mean over tokens of the KL term; it can be negative with an
            estimator such as k1.
        responses: how many responses ``kl`` is the mean of.

    Returns:
        beta of the next step: finite, at least 0, and never lower for a larger ``kl``.
    """

    def __call__(self, coef: float, kl: float, responses: int) -> float: ...
