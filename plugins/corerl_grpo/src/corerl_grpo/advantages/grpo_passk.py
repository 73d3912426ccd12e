"""Pass@k: only the best response of a group is reinforced.

With s_(1) the largest and s_(2) the second largest score of the group, sigma_g the unbiased deviation of its scores::

    A_i = (s_(1) - s_(2)) / (sigma_g + 1e-6)     for the best response
        = 0                                      for the others

Tang et al. 2025, "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning", arXiv
2503.19595: the group's maximum minus the maximum without response i, the leave-one-out advantage of the k-sample
objective with k the size of the group. The paper does not divide by a deviation; frameworks in common use do.
``norm_adv_by_std_in_grpo: false`` switches the division off. If two responses tie for the best, both get 0.

A group with one scored response has no second best: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens
from corerl_grpo.advantages.grpo import EPSILON
from corerl_grpo.advantages.options import GrpoPasskOptions
from corerl_torch.statistics import group_maxima, group_sums


def grpo_passk(inputs: AdvantageInputs, options: GrpoPasskOptions) -> Advantages:
    """Best minus second best, divided by the deviation with ``norm_adv_by_std_in_grpo``."""
    group, ids = group_scores(inputs), inputs.group_ids
    scores = torch.where(group.compared, group.scores, -torch.inf)
    is_best = group.compared & (scores == group_maxima(scores, ids))
    is_best &= group_sums(is_best.to(scores.dtype), ids) == 1
    advantages = scores - group_maxima(torch.where(is_best, -torch.inf, scores), ids)
    if options.norm_adv_by_std_in_grpo:
        advantages = advantages / (group.std + EPSILON)
    return over_tokens(torch.where(is_best, advantages, 0.0), inputs)
