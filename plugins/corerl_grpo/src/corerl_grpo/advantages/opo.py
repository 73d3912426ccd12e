"""OPO: a baseline that weights the scores of the group by length.

With s_j the score and n_j the number of tokens of response j::

    A_i = s_i - sum_j n_j s_j / sum_j n_j     over the group

Hao et al. 2025, "On-Policy RL with Optimal Reward Baseline", arXiv 2505.23585: the baseline of least
variance if the squared gradient of a response grows with its length. Only the policy's own tokens count, not the
tokens of tools. The other half of the paper is exact on-policy training: each batch is used for one update.

A group with one scored response is its own baseline: its advantage is 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores, over_tokens
from corerl_torch.statistics import group_sums


def opo(inputs: AdvantageInputs) -> Advantages:
    """Score minus the group's mean by tokens."""
    group = group_scores(inputs)
    lengths = group.lengths.to(torch.float64)
    tokens = group_sums(lengths, inputs.group_ids).clamp(min=1)
    baseline = group_sums(lengths * group.scores, inputs.group_ids) / tokens
    advantages = group.scores - baseline.to(group.scores.dtype)
    return over_tokens(torch.where(group.compared, advantages, 0.0), inputs)
