"""GRPO with the deviation of the whole batch: the score minus the group's mean, over the batch's deviation.

With s_i the score of response i and mu_g the mean score of its group::

    a_i = s_i - mu_g
    A_i = a_i / (std(a) + 1e-6)     over the responses of the batch

Khatri et al. 2025, "The Art of Scaling Reinforcement Learning Compute for LLMs" (ScaleRL), arXiv 2510.13786, section
3.2, normalisation by the batch. Each response counts once; ``reinforce_plus_plus_baseline`` counts it once for each of
its tokens, and subtracts the batch's mean. Groups without spread count in the deviation. The 1e-6 is that of ``grpo``.

A group with one scored response has no baseline: its advantage is 0, and the deviation excludes it.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens
from corerl_grpo.advantages.grpo import EPSILON


def grpo_batch_std(inputs: AdvantageInputs) -> Advantages:
    """Score minus the group's mean, divided by the batch's deviation."""
    group = group_scores(inputs)
    centred = torch.where(group.compared, group.scores - group.mean, 0.0)
    count = group.compared.sum()
    mean = centred.sum(dtype=torch.float64) / count.clamp(min=1)
    squares = torch.where(group.compared, (centred - mean).square(), 0.0).sum(dtype=torch.float64)
    deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    return over_tokens((centred / (deviation + EPSILON)).to(inputs.rewards.dtype), inputs)
