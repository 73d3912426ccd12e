"""Right estimators with claims about their bias, and the same with one flaw each."""

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages, Turns
from planted.advantage_estimators.group_baselines import moments, scores_of, spread


def _less_a_mean(inputs: AdvantageInputs, factor: Tensor) -> Advantages:
    scored, scores = scores_of(inputs)
    count, mean, _ = moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, factor * (scores - mean), 0.0), inputs)


def _count(inputs: AdvantageInputs) -> Tensor:
    scored, scores = scores_of(inputs)
    return moments(scores, scored, inputs.group_ids)[0]


def leave_one_out(inputs: AdvantageInputs) -> Advantages:
    """The score less the mean of the others."""
    count = _count(inputs)
    return _less_a_mean(inputs, count / (count - 1).clamp(min=1))


def leaves_nothing_out(inputs: AdvantageInputs) -> Advantages:
    return _less_a_mean(inputs, torch.ones(len(inputs.rewards), dtype=inputs.rewards.dtype))


def doubled(inputs: AdvantageInputs) -> Advantages:
    return spread(
        2 * leave_one_out(inputs).advantages.sum(dim=1) / inputs.response_mask.sum(dim=1).clamp(min=1), inputs
    )


def over_the_length(inputs: AdvantageInputs) -> Advantages:
    found = leave_one_out(inputs).advantages / inputs.response_mask.sum(dim=1, keepdim=True).clamp(min=1)
    return Advantages(found, found)


def turns_of(inputs: AdvantageInputs) -> tuple[Turns, Tensor]:
    """The turns, and (B, T, K) bool, the tokens of each; without turns the row is one."""
    mask = inputs.response_mask
    zeros = torch.zeros(len(mask), 1, dtype=inputs.rewards.dtype)
    turns = inputs.turns or Turns(torch.zeros(mask.shape, dtype=torch.int32), zeros)
    width = max(1, int(turns.ids.max()) + 1, turns.rewards.shape[1])
    rewards = torch.nn.functional.pad(turns.rewards, (0, width - turns.rewards.shape[1]))
    own = (turns.ids[:, :, None] == torch.arange(width)) & mask[:, :, None]
    return Turns(turns.ids, rewards * mask.any(dim=1, keepdim=True)), own


def _returns(inputs: AdvantageInputs, shift: int) -> tuple[Tensor, Tensor]:
    """(B, K): rewards from each turn, or from ``shift`` turns behind it; and which turns there are."""
    turns, own = turns_of(inputs)
    present = own.any(dim=1)
    places = torch.arange(own.shape[2])
    last = torch.where(present, places, -1).max(dim=1, keepdim=True).values.clamp(min=0)
    rest = torch.where(inputs.response_mask, inputs.rewards, 0.0)[:, :, None] * own
    rewards = rest.sum(dim=1) + turns.rewards
    rewards = rewards.scatter_add(1, last, -turns.rewards.sum(dim=1, keepdim=True))
    returns = rewards.flip(1).cumsum(dim=1).flip(1)
    return torch.where(present, torch.nn.functional.pad(returns, (0, shift))[:, shift:], 0.0), present


def _of_turns(per_turn: Tensor, inputs: AdvantageInputs) -> Advantages:
    _, own = turns_of(inputs)
    found = (per_turn[:, None, :] * own).sum(dim=2)
    return Advantages(found, found)


def turn_returns(inputs: AdvantageInputs) -> Advantages:
    """Rewards from each turn on."""
    return _of_turns(_returns(inputs, 0)[0], inputs)


def one_turn_late(inputs: AdvantageInputs) -> Advantages:
    """The first turn apart, which has them all."""
    late, on_time = _returns(inputs, 1)[0], _returns(inputs, 0)[0]
    late[:, 0] = on_time[:, 0]
    return _of_turns(late, inputs)


def turn_mean(inputs: AdvantageInputs) -> Advantages:
    """Rewards from each turn on, less their mean over the group's episodes that get there."""
    returns, present = _returns(inputs, 0)
    same = (inputs.group_ids[:, None] == inputs.group_ids).to(returns.dtype)
    counts = same @ present.to(returns.dtype)
    mean = (same @ returns) / counts.clamp(min=1)
    return _of_turns(torch.where(present & (counts > 1), returns - mean, 0.0), inputs)
