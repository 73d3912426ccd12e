"""Rewards and returns of the turns of episodes, for advantage estimators."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_torch.statistics import discounted_sums


@dataclass(frozen=True)
class TurnRewards:
    """Of B episodes with at most K turns.

    Attributes:
        ids: (B, T) int64, the turn of each trained token; -1 elsewhere.
        present: (B, K) bool, the turns with a trained token.
        rewards: (B, K) float64; 0 elsewhere. A row's sum is its score.
        observations: (B, K) int64, as of :class:`corerl.contracts.advantage_estimators.Turns`; numbers of turns if
            unknown.
    """

    ids: Tensor
    present: Tensor
    rewards: Tensor
    observations: Tensor

    @property
    def numbers(self) -> Tensor:
        """(B, K) int64: 0, 1, … in each row."""
        return torch.arange(self.present.shape[1], device=self.ids.device).expand(self.present.shape)

    @property
    def last(self) -> Tensor:
        """(B, K) bool: the last turn of each episode."""
        return self.present & (self.numbers == self.ids.max(dim=1, keepdim=True).values)

    def returns(self, gamma: float) -> Tensor:
        """(B, K) float64: R_k + gamma R_(k+1) + … over turns with a trained token; 0 elsewhere."""
        return discounted_sums(self.rewards, self.present, gamma)

    def first(self, column: Tensor) -> Tensor:
        """(B, K): the value of ``column``, (B, T), at the first trained token of each turn; 0 elsewhere."""
        starts = (self.ids >= 0) & (self.ids != functional.pad(self.ids.cummax(dim=1).values[:, :-1], (1, 0), value=-1))
        found = column.new_zeros(self.present.shape)
        return found.scatter_add_(1, self.ids.clamp(min=0), torch.where(starts, column, 0.0))

    def at_tokens(self, per_turn: Tensor) -> Tensor:
        """(B, T): of each trained token the value of its turn, from (B, K); 0 elsewhere."""
        return torch.where(self.ids >= 0, per_turn.gather(1, self.ids.clamp(min=0)), 0.0)

    def advantages(self, advantages: Tensor, returns: Tensor, inputs: AdvantageInputs) -> Advantages:
        """Numbers of turns, (B, K), at their tokens, in the dtype of the rewards."""
        dtype = inputs.rewards.dtype
        return Advantages(self.at_tokens(advantages).to(dtype), self.at_tokens(returns).to(dtype))


def turns_of(inputs: AdvantageInputs) -> TurnRewards:
    """The turns of each episode; without turns the response is one.

    The reward of a turn is its own and those of its tokens. The score on the last token contains the sum of the turns'
    own rewards; the rest of the score remains in the last turn. The reward of a turn without a trained token counts for
    the turn before it.
    """
    mask, turns = inputs.response_mask, inputs.turns
    ids = torch.where(mask, 0 if turns is None else turns.ids.long(), -1)
    own = inputs.rewards.new_zeros(len(mask), 0) if turns is None else turns.rewards
    width = max(1, own.shape[1], int(ids.max()) + 1)
    own = torch.where(mask.any(dim=1, keepdim=True), _widened(own, width, 0.0), 0.0).double()
    present = mask.new_zeros(len(mask), width + 1).scatter_(1, ids % (width + 1), True)[:, :width]
    rewards = own.scatter_add(1, ids.clamp(min=0), torch.where(mask, inputs.rewards, 0.0).double())
    last = ids.max(dim=1, keepdim=True).values.clamp(min=0)
    rewards = rewards.scatter_add(1, last, -own.sum(dim=1, keepdim=True))
    numbers = torch.arange(width, device=mask.device).expand(present.shape)
    before = torch.where(present, numbers, -1).cummax(dim=1).values
    taken = torch.where(before < 0, present.long().argmax(dim=1, keepdim=True), before)
    rewards = torch.zeros_like(rewards).scatter_add_(1, taken, rewards)
    known = None if turns is None else turns.observations
    return TurnRewards(ids, present, rewards, numbers if known is None else _widened(known, width, -1))


def class_sums(values: Tensor, keys: tuple[Tensor, ...], counted: Tensor) -> Tensor:
    """The sum of ``values`` over the elements with equal keys, at every element.

    Args:
        values: (B, K).
        keys: integers that broadcast to (B, K).
        counted: (B, K) bool, the elements that count.
    """
    stacked = torch.stack([key.expand(values.shape).flatten() for key in keys])
    _, classes = torch.unique(stacked, dim=1, return_inverse=True)
    given = torch.where(counted, values, 0.0).flatten()
    return given.new_zeros(given.shape).index_add_(0, classes, given)[classes].view(values.shape)


def _widened(values: Tensor, width: int, padding: float) -> Tensor:
    """The first ``width`` columns, with further ones of ``padding``."""
    return functional.pad(values, (0, width - values.shape[1]), value=padding)
