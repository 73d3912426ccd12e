"""Estimators of turns, by hand."""

import math

import pytest
import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Turns
from corerl.plugins import Plugins

REGISTRY = Plugins().registries.advantage_estimators

# Four episodes of one prompt, one token a turn, returns of 6, 5, 3; 4, 2; 1; and two turns that read the same.
REWARDS = torch.tensor([[1.0, 2.0, 3.0], [2.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 4.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
OBSERVED = torch.tensor([[0, 1, 2], [0, 2, -1], [0, -1, -1], [0, 1, -1]])


def estimate(name, groups=(0, 0, 0, 0), **options):
    scores = torch.zeros(4, 3, dtype=torch.float64)
    last = MASK.sum(dim=1) - 1
    scores[torch.arange(4), last] = REWARDS.sum(dim=1)
    ids = torch.where(MASK, torch.arange(3), -1).int()
    inputs = AdvantageInputs(scores, MASK, torch.tensor(groups), turns=Turns(ids, REWARDS, OBSERVED))
    return REGISTRY.select({"name": name, **options}, "here").load()(inputs)


def test_turn_returns_are_the_rewards_from_a_turn_on():
    wanted = [[6.0, 5.0, 3.0], [4.0, 2.0, 0.0], [1.0, 0.0, 0.0], [4.0, 4.0, 0.0]]
    assert estimate("turn_returns").advantages.tolist() == wanted
    assert estimate("turn_returns", gamma=0.5).advantages[0].tolist() == [1 + 1 + 0.75, 3.5, 3.0]
    whitened = estimate("turn_returns", whiten=True)
    assert whitened.returns.tolist() == wanted and abs(float(whitened.advantages.sum())) < 1e-12


def test_turn_grpo_compares_those_with_the_same_turn_and_leaves_a_lone_one_without_an_advantage():
    first, second = 15 / 4, 11 / 3
    wanted = [[6 - first, 5 - second, 0.0], [4 - first, 2 - second, 0.0], [1 - first, 0.0, 0.0]]
    found = estimate("turn_grpo").advantages
    torch.testing.assert_close(found[:3], torch.tensor(wanted, dtype=torch.float64))
    normalised = estimate("turn_grpo", norm_adv_by_std_in_grpo=True).advantages
    deviation = math.sqrt(sum((value - second) ** 2 for value in (5, 2, 4)) / 2)
    assert float(normalised[0, 1]) == pytest.approx((5 - second) / (deviation + 1e-6))


def test_turn_rloo_takes_others_at_the_observation_then_at_the_turn_then_at_their_ends():
    """The third turn of the first has read what the second turn of the second episode has, whose return is 2."""
    found = estimate("turn_rloo").advantages
    assert found[0].tolist() == [6 - (4 + 1 + 4) / 3, 5 - 4.0, 3 - 2.0]
    assert found[1].tolist() == [4 - (6 + 1 + 4) / 3, 2 - 3.0, 0.0]
    by_turn = estimate("turn_rloo", anchor="turn").advantages
    assert by_turn[0].tolist() == [6 - (4 + 1 + 4) / 3, 5 - (2 + 4) / 2, 3 - (2 + 1 + 4) / 3]


def test_groups_are_apart_and_a_lone_episode_has_no_advantage():
    found = estimate("turn_rloo", groups=(0, 1, 0, 1)).advantages
    assert found[0].tolist() == [6 - 1.0, 5 - 1.0, 3 - 1.0] and found[2, 0] == 1 - 6.0
    for name in ("turn_rloo", "turn_grpo", "gigpo"):
        assert not estimate(name, groups=(0, 1, 1, 1)).advantages[0].any()


def test_gigpo_adds_the_episode_and_the_turn_at_its_anchor():
    found = estimate("gigpo", gamma=1.0, step_advantage_w=0.5, norm_adv_by_std_in_grpo=False).advantages
    mean = 15 / 4
    # observation 0: returns 6, 4, 1, 4; 1: returns 5, 4; 2: returns 3, 2
    assert found[0].tolist() == [6 - mean + 0.5 * (6 - mean), 6 - mean + 0.5 * 0.5, 6 - mean + 0.5 * 0.5]
    assert found[1].tolist() == [4 - mean + 0.5 * (4 - mean), 4 - mean - 0.5 * 0.5, 0.0]
    by_turn = estimate("gigpo", gamma=1.0, anchor="turn", norm_adv_by_std_in_grpo=False).advantages
    assert float(by_turn[0, 2]) == 6 - mean  # nobody else has a third turn
    normalised = estimate("gigpo", gamma=1.0).advantages
    deviation = math.sqrt(sum((value - mean) ** 2 for value in (6, 4, 1, 4)) / 3)
    pair = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert float(normalised[0, 1]) == pytest.approx((6 - mean) / (deviation + 1e-6) + pair)
