"""RLOO: the score minus the mean score of the group's other responses.

With n the number of scored responses in the group and mu_g their mean score::

    A_i = s_i - sum_(j != i) s_j / (n - 1)  =  n / (n - 1) (s_i - mu_g)

Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in
LLMs", arXiv 2402.14740. The paper treats the response as one action, without clipping, with the KL penalty in the
reward; frameworks in common use combine the estimator with PPO's clipped loss, here ``vanilla``.

A group with one scored response has no other responses: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens


def rloo(inputs: AdvantageInputs) -> Advantages:
    """Score minus the mean of the others."""
    group = group_scores(inputs)
    advantages = group.count / (group.count - 1).clamp(min=1) * (group.scores - group.mean)
    return over_tokens(torch.where(group.compared, advantages, 0.0), inputs)
