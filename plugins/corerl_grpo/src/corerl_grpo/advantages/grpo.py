"""GRPO: group-relative advantages.

With s_i the score of response i (its token rewards summed), mu_g and sigma_g the mean and the unbiased standard
deviation of the scores in its group::

    A_i = (s_i - mu_g) / (sigma_g + 1e-6)

Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, section 4.1.2 (outcome supervision). The 1e-6 is not in the paper;
frameworks in common use add it.

A group with one scored response has no spread: its advantage is 0.
"""

import torch
from torch import Tensor

from corerl.registry.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.options import GrpoOptions

EPSILON = 1e-6


def grpo(inputs: AdvantageInputs, options: GrpoOptions) -> Advantages:
    """Score minus the group's mean, divided by its deviation with ``norm_adv_by_std_in_grpo``."""
    scored = inputs.response_mask.any(dim=1)
    scores = torch.where(inputs.response_mask, inputs.rewards, 0.0).sum(dim=1)
    count, mean, std = group_moments(scores, scored, inputs.group_ids)
    centred = scores - mean
    if options.norm_adv_by_std_in_grpo:
        centred = centred / (std + EPSILON)
    centred = torch.where(scored & (count > 1), centred, 0.0)
    advantages = torch.where(inputs.response_mask, centred[:, None], 0.0)
    return Advantages(advantages, advantages)


def group_moments(scores: Tensor, scored: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Size, mean and unbiased standard deviation of each response's group, over its scored responses.

    Args:
        scores: (B,) float.
        scored: (B,) bool, which responses count.
        group_ids: (B,) int64, 0 … G-1.

    Returns:
        (B,) each; the deviation of a group of one is 0.
    """
    groups = int(group_ids.max()) + 1

    def total(values: Tensor) -> Tensor:
        return values.new_zeros(groups).index_add_(0, group_ids, torch.where(scored, values, 0.0))[group_ids]

    count = total(torch.ones_like(scores))
    mean = total(scores) / count.clamp(min=1)
    variance = total((scores - mean) ** 2) / (count - 1).clamp(min=1)
    return count, mean, variance.sqrt()
