"""Advantage estimators: token rewards in, advantages and returns out."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdvantageInputs:
    """What an estimator is given; B responses, T response tokens, everything on one device.

    Attributes:
        rewards: (B, T) float32 token rewards; 0 where ``response_mask`` is 0. An outcome score is on the last token.
        response_mask: (B, T) bool, true on tokens that the policy generated. A row without a true token (a response
            whose scorer failed, say) takes no part: it counts in no mean and no deviation, and its advantages are 0.
        group_ids: (B,) int64; responses to one prompt share an id. Ids are 0 … G-1, rows in any order.
        values: (B, T) float32 critic values, when the entry declares ``needs_critic``.
        greedy_scores: (B,) float32 score of the greedy response to the row's prompt, with ``needs_greedy_baseline``.
    """

    rewards: "Tensor"
    response_mask: "Tensor"
    group_ids: "Tensor"
    values: "Tensor | None" = None
    greedy_scores: "Tensor | None" = None


class Advantages(NamedTuple):
    """(B, T) float32 each; both 0 where ``response_mask`` is 0."""

    advantages: "Tensor"
    returns: "Tensor"


class AdvantageEstimator(Protocol):
    """A pure, vectorised function: no Python loop over responses or groups, same device in and out.

    With options it also takes ``options``, an instance of the dataclass it was registered with.
    """

    def __call__(self, inputs: AdvantageInputs) -> Advantages: ...
