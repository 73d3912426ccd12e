"""GPG: the score minus the group's mean, enlarged if many responses give no gradient.

With s_i the score of response i, mu_g the mean score of its group, B the number of scored responses in the batch::

    alpha = B / (number of scores that are not 0)
    A_i = alpha (s_i - mu_g) / f_norm

Chu et al. 2025, "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning", arXiv 2504.02546. The
paper's alpha counts the responses of groups with different scores, which give a gradient. Here alpha counts non-zero
scores, as in frameworks in common use, so that runs can be compared. The two counts differ in general: with
scores of 0 and 1, this alpha is 1 over the accuracy. Use it with the policy loss ``gpg``.

A group with one scored response has no baseline: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens
from corerl_grpo.advantages.options import GpgOptions


def gpg(inputs: AdvantageInputs, options: GpgOptions) -> Advantages:
    """Score minus the group's mean, times alpha, over ``f_norm``."""
    group = group_scores(inputs)
    nonzero = torch.count_nonzero(group.scores).clamp(min=1)
    advantages = (group.scores - group.mean) * torch.count_nonzero(group.lengths) / nonzero / options.f_norm
    return over_tokens(torch.where(group.compared, advantages, 0.0), inputs)
