"""Wrong advantage estimators."""

import torch
from torch import Tensor

from corerl.registry.advantage_estimators import AdvantageInputs, Advantages
from corerl.testing.planted.fault import Fault


def _scores(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """(B,) whether a row has a score, and the score."""
    return inputs.response_mask.any(dim=1), torch.where(inputs.response_mask, inputs.rewards, 0.0).sum(dim=1)


def _group_means(scores: Tensor, scored: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) the number of scored responses in each row's group, and their mean."""
    same = ((group_ids[:, None] == group_ids) & scored).to(scores.dtype)
    count = same.sum(dim=1)
    return count, same @ scores / count.clamp(min=1)


def _spread(numbers: Tensor, inputs: AdvantageInputs) -> Advantages:
    """One number for all tokens of a row."""
    advantages = torch.where(inputs.response_mask, numbers[:, None], 0.0)
    return Advantages(advantages, advantages)


def group_baseline(inputs: AdvantageInputs) -> Advantages:
    """The score less the mean of the group."""
    scored, scores = _scores(inputs)
    count, mean = _group_means(scores, scored, inputs.group_ids)
    return _spread(torch.where(count > 1, scores - mean, 0.0), inputs)


def batch_baseline(inputs: AdvantageInputs) -> Advantages:
    """The mean of the batch instead of the group's."""
    scored, scores = _scores(inputs)
    mean = (scores * scored).sum() / scored.sum().clamp(min=1)
    alone = _group_means(scores, scored, inputs.group_ids)[0] == 1
    return _spread(torch.where(alone, 0.0, scores - mean), inputs)


FAULTS = [
    Fault(
        "advantage_estimators",
        "batch_baseline",
        "the baseline is the mean of the batch, not of the group",
        wrong=batch_baseline,
        right=group_baseline,
        check="groups_are_isolated",
        reason="another group rise by 1, not by one scale (float32)",
        facts={"needs_groups": True},
    ),
]
