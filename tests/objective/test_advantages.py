"""Advantages of episodes with branches, against references over lists of tokens."""

import pytest
import torch

from corerl.contracts.advantage_estimators import Advantages, Turns
from corerl.contracts.experience import collate
from corerl.objective import estimate, loss_weights
from corerl.plugins import load_plugins

# Episode 0 has requests 0 (row 0), 1 (row 3, a branch) and 2 (row 0); episode 1 has one row; episode 2 has two.
PROMPTS = [[1], [1], [2], [1, 10, 11, 12], [2, 2, 2]]
RESPONSES = [[10, 11, 5, 20], [30, 31], [40], [13, 14], [50, 51, 52]]
TURNS = [[0, 0, -1, 2], [0, 0], [1], [1, 1], [0, -1, 0]]
EPISODES = [0, 1, 2, 0, 2]


def batch(scores=(1.0, 0.0, 0.5)):
    masks = [[turn >= 0 for turn in row] for row in TURNS]
    experience = collate(PROMPTS, RESPONSES, [0, 0, 1, 0, 1], masks=masks)
    experience.episode_ids = torch.tensor(EPISODES)
    experience.rewards = torch.zeros(5, 4)
    for row, score in enumerate(scores):
        experience.rewards[row, len(RESPONSES[row]) - 1] = score
    experience.old_log_probs = -torch.rand(5, 4, generator=torch.Generator().manual_seed(1))
    ids = torch.full((5, 4), -1, dtype=torch.int32)
    for row, turns in enumerate(TURNS):
        ids[row, : len(turns)] = torch.tensor(turns)
    return experience, Turns(ids, torch.tensor([[0.0, 0.25, 0.75], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]]))


def by_turn(column):
    """Of each episode, the values at its trained tokens, in the order of turns and places."""
    found = {episode: [] for episode in EPISODES}
    for row, turns in enumerate(TURNS):
        for place, turn in enumerate(turns):
            if turn >= 0:
                found[EPISODES[row]].append((turn, row, place, float(column[row, place])))
    return [[value for *_, value in sorted(each)] for _, each in sorted(found.items())]


def test_an_estimator_sees_the_trained_tokens_of_an_episode_in_the_order_of_its_turns():
    seen = []

    def numbered(inputs):
        seen.append(inputs)
        numbers = torch.arange(inputs.rewards.numel(), dtype=torch.float32).view(inputs.rewards.shape)
        return Advantages(numbers, -numbers)

    experience, turns = batch()
    experience.values = torch.rand(5, 4, generator=torch.Generator().manual_seed(2))
    weights = torch.rand(5, 4, generator=torch.Generator().manual_seed(3))
    experience.greedy_scores = torch.tensor([3.0, 3.0, 4.0, 3.0, 4.0])
    advantages, returns = estimate(numbered, experience, {"format": torch.ones(3)}, weights, turns)
    [inputs] = seen
    lengths = [5, 2, 3]
    assert inputs.response_mask.sum(dim=1).tolist() == lengths
    for column, name in ((experience.rewards, "rewards"), (experience.values, "values")):
        assert [row[:size].tolist() for row, size in zip(getattr(inputs, name), lengths, strict=True)] == by_turn(
            column
        )
    assert [row[:size].tolist() for row, size in zip(inputs.rollout_weights, lengths, strict=True)] == by_turn(weights)
    assert inputs.rewards.sum().item() == experience.rewards.sum().item()
    assert inputs.group_ids.tolist() == [0, 0, 1] and inputs.greedy_scores.tolist() == [3.0, 3.0, 4.0]
    assert inputs.turns.ids.tolist() == [[0, 0, 1, 1, 2], [0, 0, -1, -1, -1], [0, 0, 1, -1, -1]]
    assert inputs.turns.rewards is turns.rewards
    assert by_turn(advantages) == [[0, 1, 2, 3, 4], [5, 6], [10, 11, 12]]
    assert torch.equal(returns, -advantages) and not advantages[~experience.response_mask].any()


def with_options(name, **options):
    """An advantage estimator of a plugin; the test is skipped without it."""
    registries = load_plugins().registries
    if name not in [entry.name for entry in registries.advantage_estimators]:
        pytest.skip(f"no plugin registers {name}")
    return registries.advantage_estimators.select({"name": name, **options}, "algorithm.adv_estimator").load()


def test_group_baselines_count_episodes_and_all_rows_share_the_score():
    experience, turns = batch()
    advantages, _ = estimate(with_options("grpo"), experience, {}, None, turns)
    mean, std = 0.5, torch.tensor([1.0, 0.0]).std().item()
    expected = 0.5 / (std + 1e-6)
    torch.testing.assert_close(advantages[0], torch.tensor([expected, expected, 0, expected]))
    torch.testing.assert_close(advantages[3, :2], torch.tensor([expected, expected]))
    torch.testing.assert_close(advantages[1, :2], torch.tensor([(0 - mean) / (std + 1e-6)] * 2))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8)])
def test_gae_runs_through_the_turns_of_all_branches(gamma, lam):
    experience, turns = batch()
    values = torch.rand(5, 4, generator=torch.Generator().manual_seed(2))
    experience.values = values.clone()
    estimator = with_options("gae", gamma=gamma, lam=lam)
    _, returns = estimate(estimator, experience, {}, None, turns)
    for rewards, own, got in zip(by_turn(experience.rewards), by_turn(values), by_turn(returns), strict=True):
        carried, expected = 0.0, []
        for place in reversed(range(len(own))):
            following = own[place + 1] if place + 1 < len(own) else 0.0
            carried = rewards[place] + gamma * following - own[place] + gamma * lam * carried
            expected.append(carried + own[place])
        assert got == pytest.approx(expected[::-1], abs=1e-5)


def test_an_episode_without_a_score_has_no_token():
    experience, turns = batch()
    experience.response_mask[torch.tensor(EPISODES) == 0] = False
    experience.rewards[0] = 0.0
    advantages, _ = estimate(with_options("grpo"), experience, {}, None, turns)
    assert not advantages.any()


@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_a_sequence_of_the_loss_is_an_episode_with_all_of_its_rows(mode):
    experience, _ = batch()
    weights = loss_weights(experience.response_mask, mode, 7, experience.episode_ids)
    tokens = [5, 2, 3]
    for row, episode in enumerate(EPISODES):
        per_token = {
            "seq-mean-token-sum": 1 / 3,
            "seq-mean-token-mean": 1 / tokens[episode] / 3,
            "seq-mean-token-sum-norm": 1 / 3 / 7,
        }[mode]
        mine = experience.response_mask[row]
        assert weights[row][mine].tolist() == pytest.approx([per_token] * int(mine.sum()))
    last = experience.episode_ids == 2
    alone = loss_weights(experience.response_mask[last], "seq-mean-token-sum", None, experience.episode_ids[last])
    assert alone.sum().item() == 3.0
