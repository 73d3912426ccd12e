"""Preference losses: from the scores of two responses to one prompt to a loss."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PreferenceInputs:
    """The n pairs of a micro-batch.

    Attributes:
        chosen, rejected: (n,) float64, score of the preferred and of the other response, which carry the gradient: for
            DPO the log-ratio log π(y|x) - log π_ref(y|x) in nats, for a reward model the reward.
        margins: (n,) float64, least difference that the row asks for; 0 without the column ``margin``.
    """

    chosen: "Tensor"
    rejected: "Tensor"
    margins: "Tensor"


class PreferenceLoss(Protocol):
    """A function of each pair alone; with options it takes ``options``."""

    def __call__(self, inputs: PreferenceInputs) -> "Tensor":
        """(n,) terms to be minimised; their mean over the pairs of the mini-batch is the loss."""
        ...
