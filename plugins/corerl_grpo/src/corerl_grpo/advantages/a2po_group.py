"""A2PO without a stage before training: the optimal value is that of the group's own responses.

With s_j the scores of the responses in the group of response i::

    V = beta log mean_j exp(s_j / beta)
    A_i = s_i - V

Brantley et al. 2025 (A*-PO), arXiv 2505.20686, take V* from responses of the reference policy (estimator ``a2po``).
Here the present policy sampled them: V is the paper's in the first step alone, while the policy is the reference; later
it is larger, and the loss ``a2po`` pulls the policy less far from the reference. ``beta`` is beta_1 of the paper.

A group with one scored response is its own value: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens
from corerl_grpo.advantages.options import A2poGroupOptions
from corerl_torch.statistics import group_maxima, group_sums


def a2po_group(inputs: AdvantageInputs, options: A2poGroupOptions) -> Advantages:
    """Score minus the group's optimal value."""
    group, ids = group_scores(inputs), inputs.group_ids
    scored = group.lengths > 0
    scaled = torch.where(scored, group.scores.double() / options.beta, -torch.inf)
    excess = torch.where(scored, scaled - group_maxima(scaled, ids), -torch.inf)
    mean = group_sums(excess.exp(), ids) / group.count.clamp(min=1)
    advantages = torch.where(group.compared, options.beta * (excess - mean.log()), 0.0)
    return over_tokens(advantages.to(inputs.rewards.dtype), inputs)
