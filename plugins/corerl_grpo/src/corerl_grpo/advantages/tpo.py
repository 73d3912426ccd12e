"""TPO: the distance of the old policy from a target distribution over the responses of a group.

With l_i = sum_t log pi_old,t of response i of a group of n, s_i its score, mu and sigma mean and population deviation
of the group's scores, and softmax over the group::

    u_i = (s_i - mu) / sigma                    0 where sigma is 0
    p = softmax(l)
    q = softmax(l + u / eta)
    A_i = n (q_i - p_i)

The paper's loss is the cross-entropy -sum_i q_i log p_i of the present policy's p, whose gradient is
sum_i (p_i - q_i) grad log pi(y_i). With the policy loss ``gpg`` and the aggregation ``seq-mean-token-sum`` the terms
-A log pi have this gradient, as a mean over prompts, in the first update of a step. The paper computes p anew in each
update of a batch, so it stops at p = q; this estimator keeps p. ``ppo_epochs: 1`` with a mini-batch of the whole batch
is the paper's on-policy setting.

Kaddour 2026, "Target Policy Optimization", arXiv 2604.06159, equations 1 to 3 and appendix A. The p of a group of long
responses is nearly 1 for the likeliest one: q - p is small for all others, as in the paper.

A group with one scored response is its own target: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_grpo.advantages.group_scores import GroupScores, group_scores, over_tokens
from corerl_grpo.advantages.options import TpoOptions
from corerl_torch.statistics import group_maxima, group_sums


def tpo(inputs: AdvantageInputs, options: TpoOptions) -> Advantages:
    """Size of the group times target minus old probability of the response within the group."""
    if inputs.log_probs is None:
        raise MissingInputError("log_probs", "a policy at the start of the step")
    group = group_scores(inputs)
    own = torch.where(inputs.response_mask, inputs.log_probs, 0.0).sum(dim=1, dtype=torch.float64)
    target = own + _standardised(group) / options.eta
    gap = _softmax(target, group, inputs.group_ids) - _softmax(own, group, inputs.group_ids)
    advantages = torch.where(group.compared, group.count * gap, 0.0)
    return over_tokens(advantages.to(inputs.rewards.dtype), inputs)


def _standardised(group: GroupScores) -> torch.Tensor:
    """(B,) float64, in population deviations of the group."""
    population = group.std.double() * ((group.count - 1).clamp(min=0) / group.count.clamp(min=1)).double().sqrt()
    return torch.where(population > 0, (group.scores - group.mean).double() / population, 0.0)


def _softmax(values: torch.Tensor, group: GroupScores, group_ids: torch.Tensor) -> torch.Tensor:
    """(B,) float64 within the compared rows of each group, 0 elsewhere."""
    held = torch.where(group.compared, values, -torch.inf)
    shifted = torch.where(group.compared, values - group_maxima(held, group_ids), -torch.inf)
    exponentials = shifted.exp()
    return exponentials / group_sums(exponentials, group_ids).clamp(min=torch.finfo(torch.float64).tiny)
