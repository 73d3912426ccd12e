"""Shared by estimators with one number for each response: scores and their groups, and A_t = a."""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_torch.statistics import group_moments


@dataclass(frozen=True)
class GroupScores:
    """(B,) each.

    Attributes:
        scores: sum of the row's token rewards.
        lengths: number of the policy's tokens, int64; a row without one has no score.
        compared: the row and another row of its group have scores; only these rows get an advantage.
        count, mean, std: number, mean and unbiased deviation of the scores in the row's group.
    """

    scores: Tensor
    lengths: Tensor
    compared: Tensor
    count: Tensor
    mean: Tensor
    std: Tensor


def group_scores(inputs: AdvantageInputs) -> GroupScores:
    """The scores of the responses and the moments of their groups; a row with an empty mask is ignored."""
    scores = inputs.rewards.sum(dim=1)  # rewards are 0 outside the mask
    lengths = inputs.response_mask.sum(dim=1)
    count, mean, std = group_moments(scores, lengths > 0, inputs.group_ids)
    return GroupScores(scores, lengths, (lengths > 0) & (count > 1), count, mean, std)


def over_tokens(per_response: Tensor, inputs: AdvantageInputs) -> Advantages:
    """Spread one number for each response, (B,), over its tokens; the returns are the same tensor."""
    advantages = torch.where(inputs.response_mask, per_response[:, None], 0.0)
    return Advantages(advantages, advantages)
