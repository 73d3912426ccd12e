"""Rewards and returns of turns, by hand."""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Turns
from corerl_torch.turns import class_sums, turns_of

IDS = torch.tensor([[0, 0, -1, 1, -1, 2], [0, -1, 1, -1, -1, -1], [0, 1, -1, -1, -1, -1]], dtype=torch.int32)
OWN = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.0, 0.0], [9.0, 9.0, 9.0]])
OBSERVED = torch.tensor([[0, 1, 2], [0, 2, -1], [0, 1, -1]])


def inputs(**changes):
    """Three episodes; outcome scores of 4 and 1 besides the rewards of turns; the last has no score."""
    mask = IDS >= 0
    mask[2] = False
    rewards = torch.zeros(3, 6)
    rewards[0, 5], rewards[1, 2] = 3.0 + 4.0, 0.5 + 1.0
    given = {"rewards": rewards, "response_mask": mask, "turns": Turns(IDS, OWN, OBSERVED), **changes}
    return AdvantageInputs(group_ids=torch.zeros(3, dtype=torch.int64), **given)


def test_the_outcome_is_a_reward_of_the_last_turn_and_the_sum_is_the_score():
    turns = turns_of(inputs())
    assert turns.rewards.tolist() == [[1.0, 2.0, 4.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert turns.present.tolist() == [[True] * 3, [True, True, False], [False] * 3]
    assert turns.last.tolist() == [[False, False, True], [False, True, False], [False] * 3]
    assert turns.rewards.sum(dim=1).tolist() == inputs().rewards.sum(dim=1).tolist()


def test_rewards_of_tokens_count_for_their_turn():
    rewards = inputs().rewards
    rewards[0, 0], rewards[0, 3] = -0.25, -0.5
    assert turns_of(inputs(rewards=rewards)).rewards[0].tolist() == [0.75, 1.5, 4.0]


def test_returns_are_discounted_by_turns_not_by_tokens():
    assert turns_of(inputs()).returns(0.5).tolist() == [[1 + 0.5 * 4, 4.0, 4.0], [1.0, 1.0, 0.0], [0.0] * 3]


def test_the_reward_of_a_turn_without_a_trained_token_counts_for_the_turn_before():
    ids = IDS.clone()
    ids[0, 3] = -1
    mask = inputs().response_mask & (ids >= 0)
    turns = turns_of(inputs(turns=Turns(ids, OWN, OBSERVED), response_mask=mask))
    assert turns.rewards[0].tolist() == [3.0, 0.0, 4.0]
    assert turns.returns(0.5)[0].tolist() == [5.0, 0.0, 4.0]


def test_without_turns_a_response_is_one():
    turns = turns_of(inputs(turns=None))
    assert turns.rewards.tolist() == [[7.0], [1.5], [0.0]] and turns.observations.tolist() == [[0]] * 3


def test_turns_without_rewards_and_observations():
    turns = turns_of(inputs(turns=Turns(IDS, torch.zeros(3, 0))))
    assert turns.rewards.tolist() == [[0.0, 0.0, 7.0], [0.0, 1.5, 0.0], [0.0] * 3]
    assert turns.observations.tolist() == [[0, 1, 2]] * 3


def test_first_and_at_tokens():
    turns = turns_of(inputs())
    column = torch.arange(18.0).view(3, 6)
    assert turns.first(column).tolist() == [[0.0, 3.0, 5.0], [6.0, 8.0, 0.0], [0.0] * 3]
    spread = turns.at_tokens(torch.tensor([[1.0, 2.0, 3.0]] * 3))
    assert spread.tolist() == [[1.0, 1.0, 0.0, 2.0, 0.0, 3.0], [1.0, 0.0, 2.0, 0.0, 0.0, 0.0], [0.0] * 6]


def test_sums_of_classes_leave_out_what_does_not_count():
    keys = (torch.tensor([[0], [0], [1]]), torch.tensor([[0, 1], [1, 0], [0, 0]]))
    counted = torch.tensor([[True, True], [True, False], [True, True]])
    values = torch.tensor([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]])
    assert class_sums(values, keys, counted).tolist() == [[1.0, 6.0], [6.0, 1.0], [48.0, 48.0]]
