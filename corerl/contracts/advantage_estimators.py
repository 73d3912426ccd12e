"""Advantage estimators: token rewards in, advantages and returns out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = {
    "groups": "requires `rollout.n` of at least 2",
    "critic": "trains a value model; `inputs.values`",
    "greedy_baseline": "scores a greedy response to every prompt; `inputs.greedy_scores`",
    "sum_pi_squared": "computes Σπ² at every token; `inputs.sum_pi_squared`",
}
"""need of an entry -> its effect on the run"""


@dataclass(frozen=True)
class AdvantageInputs:
    """What an estimator is given; B responses, T response tokens, everything on one device, every number finite.

    Attributes:
        rewards: (B, T) float32 token rewards; 0 where ``response_mask`` is 0. An outcome score is on the last token.
        response_mask: (B, T) bool, true on tokens that the policy generated. A row without a true token (a response
            whose scorer failed, say) takes no part: it counts in no mean and no deviation, and its advantages are 0.
        group_ids: (B,) int64; responses to one prompt share an id. Ids are 0 … G-1, rows in any order.
        values: (B, T) float32 critic values, when the entry needs ``critic``. The value at a token is the
            critic's prediction before that token; 0 where ``response_mask`` is 0.
        greedy_scores: (B,) float32 score of the greedy response to the row's prompt, with need ``greedy_baseline``.
        log_probs: (B, T) float32, log pi of the sampled tokens under the policy at the start of the step.
        sum_pi_squared: (B, T) float32, the sum of pi(v)^2 over the vocabulary at each token, under that policy, with
            need ``sum_pi_squared``.
        components: name -> (B,) float32, named parts of the scores, 0 in a row that lacks one.
        rollout_weights: (B, T) float32, what rollout correction multiplies the terms of the policy loss by, 0 at a
            token that it rejects; None if it changes no term.
    """

    rewards: "Tensor"
    response_mask: "Tensor"
    group_ids: "Tensor"
    values: "Tensor | None" = None
    greedy_scores: "Tensor | None" = None
    log_probs: "Tensor | None" = None
    sum_pi_squared: "Tensor | None" = None
    components: Mapping[str, "Tensor"] = field(default_factory=dict)
    rollout_weights: "Tensor | None" = None


class Advantages(NamedTuple):
    """(B, T) each, in the dtype of the rewards; both 0 where ``response_mask`` is 0."""

    advantages: "Tensor"
    returns: "Tensor"


class AdvantageEstimator(Protocol):
    """A pure, vectorised function: no Python loop over responses, tokens or groups, same device and dtype in and out.

    A group with one scored response has no spread and no baseline: every estimator that compares the responses of a
    group gives it advantages of 0. With options it also takes ``options``, an instance of the dataclass it was
    registered with.
    """

    def __call__(self, inputs: AdvantageInputs) -> Advantages: ...
