"""MaxRL: the score minus the group's mean, over the group's mean.

With s_i the score of response i, in [0, 1], and mu_g the mean score of its group::

    A_i = (s_i - mu_g) / mu_g     where mu_g > 0
        = 0                       elsewhere

Tajwar et al. 2026, "Maximum Likelihood Reinforcement Learning", arXiv 2602.02710: in expectation the gradient of the
log-likelihood of a correct answer, to the order of the group's size. Rarely solved prompts weigh more, and larger
groups come closer to maximum likelihood. Scores outside [0, 1] have no such meaning; with a mean below 0 the advantage
is 0, not of the opposite sign.

A group with one scored response has no baseline: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens


def maxrl(inputs: AdvantageInputs) -> Advantages:
    """Score over the group's mean, minus 1."""
    group = group_scores(inputs)
    solved = group.compared & (group.mean > 0)
    advantages = (group.scores - group.mean) / torch.where(solved, group.mean, 1.0)
    return over_tokens(torch.where(solved, advantages, 0.0), inputs)
