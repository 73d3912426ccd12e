"""REINFORCE++ with a baseline: subtract the group's mean, divide by the deviation of the whole batch.

With s_i the score of response i and mu_g the mean score of its group::

    a_i = s_i - mu_g
    A_i = (a_i - mean(a)) / sqrt(var(a) + 1e-8)     over the whole batch

Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Normalization", arXiv 2501.03262
(the variant "w/ Baseline"). Mean and variance are over the tokens of the batch, as in frameworks in common use: a
response counts once for each of its tokens.

A group with one scored response has no baseline: its advantage is 0, and the means exclude it.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens
from corerl_torch.statistics import whiten_scores


def reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> Advantages:
    """Score minus the group's mean, whitened."""
    group = group_scores(inputs)
    lengths = torch.where(group.compared, group.lengths, 0)
    return over_tokens(whiten_scores(group.scores - group.mean, lengths), inputs)
