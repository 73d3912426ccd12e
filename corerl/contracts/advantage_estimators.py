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
    "log_probs": "computes log-probs of the policy before the advantages; `inputs.log_probs`",
    "sum_pi_squared": "computes Σπ² and log-probs before the advantages; `inputs.sum_pi_squared`, `inputs.log_probs`",
}
"""need of an entry -> its effect on the run"""


class Turns(NamedTuple):
    """The turns of B episodes.

    Attributes:
        ids: (B, T) int32, the number of the turn that sampled a token, in the order of the episode's requests; -1 at
            other tokens.
        rewards: (B, K) float32, of each turn, 0 without one. Their sum is part of the outcome score.
        observations: (B, at least K) int64, equal for turns before which the policy read the same tokens since its last
            turn, at first the prompt; -1 without a turn. None: unknown.
    """

    ids: "Tensor"
    rewards: "Tensor"
    observations: "Tensor | None" = None


@dataclass(frozen=True)
class AdvantageInputs:
    """Inputs: B responses, T response tokens, all on one device, all finite.

    A response with branches is one row: its trained tokens alone, in the order of the turns.

    Attributes:
        rewards: (B, T) float32 token rewards; 0 outside ``response_mask``. An outcome score is on the last token.
        response_mask: (B, T) bool, true on tokens of the policy. A row without a true token (failed scorer) counts in
            no mean and no deviation; its advantages are 0.
        group_ids: (B,) int64, 0 … G-1, equal for responses to one prompt; rows are in any order.
        values: (B, T) float32, the critic's prediction before each token, 0 outside ``response_mask``; need ``critic``.
        greedy_scores: (B,) float32 score of the greedy response to the row's prompt; need ``greedy_baseline``.
        log_probs: (B, T) float32, log pi of the sampled tokens under the policy at the start of the step; need
            ``log_probs`` or ``sum_pi_squared``, without which a step may compute them later.
        sum_pi_squared: (B, T) float32, sum of pi(v)^2 over the vocabulary, under that policy; need ``sum_pi_squared``.
        components: name -> (B,) float32, named parts of the scores, 0 in a row without the part.
        rollout_weights: (B, T) float32 factors of the policy loss's terms by rollout correction, 0 at rejected tokens;
            None if all are 1.
        turns: of episodes; None without an agent.
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
    turns: Turns | None = None


class Advantages(NamedTuple):
    """(B, T) each, in the dtype of the rewards; both 0 where ``response_mask`` is 0."""

    advantages: "Tensor"
    returns: "Tensor"


class AdvantageEstimator(Protocol):
    """A pure, vectorised function without a loop over responses, tokens or groups; device and dtype are kept.

    An estimator that compares responses gives a group with one scored response advantages of 0. With options it takes
    ``options``, an instance of its options dataclass.
    """

    def __call__(self, inputs: AdvantageInputs) -> Advantages: ...
