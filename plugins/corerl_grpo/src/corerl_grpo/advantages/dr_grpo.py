"""Dr. GRPO: the score minus the group's mean, without division.

With s_i the score of response i and mu_g the mean score of its group::

    A_i = s_i - mu_g

Liu et al. 2025, "Understanding R1-Zero-Like Training: A Critical Perspective", arXiv 2503.20783, section 3.1: dividing
by the deviation favours prompts that are nearly solved or nearly hopeless. Estimator ``grpo`` gives the same advantages
without ``norm_adv_by_std_in_grpo``. The paper's other half is the aggregation ``seq-mean-token-sum-norm``::

    loss = sum_i sum_t term_it / (responses · L)

L is constant: ``actor.loss_scale_factor``, or else ``data.max_response_length``.

A group with one scored response has no baseline: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens


def dr_grpo(inputs: AdvantageInputs) -> Advantages:
    """Score minus the group's mean."""
    group = group_scores(inputs)
    return over_tokens(torch.where(group.compared, group.scores - group.mean, 0.0), inputs)
