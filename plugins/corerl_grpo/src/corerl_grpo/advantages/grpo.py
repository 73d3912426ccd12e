"""GRPO: group-relative advantages.

With s_i the score of response i (its token rewards summed), mu_g and sigma_g the mean and the unbiased standard
deviation of the scores in its group::

    A_i = (s_i - mu_g) / (sigma_g + 1e-6)

Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", arXiv
2402.03300, section 4.1.2 (outcome supervision). The 1e-6 is not in the paper; frameworks in common use add it. The
policy loss ``vanilla`` also has a dual clip, which is not in the paper.

A group with one scored response has no spread: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens
from corerl_grpo.advantages.options import GrpoOptions

EPSILON = 1e-6


def grpo(inputs: AdvantageInputs, options: GrpoOptions) -> Advantages:
    """Score minus the group's mean; with ``norm_adv_by_std_in_grpo`` divided by the group's deviation."""
    group = group_scores(inputs)
    advantages = group.scores - group.mean
    if options.norm_adv_by_std_in_grpo:
        advantages = advantages / (group.std + EPSILON)
    return over_tokens(torch.where(group.compared, advantages, 0.0), inputs)
