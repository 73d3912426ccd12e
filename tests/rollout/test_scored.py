"""Responses with their scores: tensors, selections and joins."""

import dataclasses

import torch

from corerl.batch.rollouts import Episode, Row
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.rollout.scored import ScoredRollouts, observations, score_tensors


def scores(results):
    return [result.score for result in results]


def test_staleness_counts_updates_between_the_weights_of_a_response_and_the_policy_that_is_updated(scored_rollouts):
    assert scored_rollouts([1.0, 0.0], version=4).staleness(5) == [0, 0]
    assert scored_rollouts([1.0], version=4).staleness(7) == [2]


def test_each_token_carries_the_version_of_its_weights_and_counts_in_the_mean(scored_rollouts):
    scored = scored_rollouts([1.0, 0.0], version=4, lengths=[3, 1])
    first, second = scored.rollouts.completions
    divided = dataclasses.replace(first, updates=((1, 5), (2, 6)))
    scored = dataclasses.replace(scored, rollouts=dataclasses.replace(scored.rollouts, completions=[divided, second]))
    assert scored.experience().weight_versions.tolist() == [[4, 5, 6], [4, 0, 0]]
    assert scored.staleness(7) == [2, 2]
    assert scored.token_staleness(7) == (2 + 1 + 0 + 2) / 4
    episodes = [Episode([True, False, True]), Episode([True])]
    scored = dataclasses.replace(scored, rollouts=dataclasses.replace(scored.rollouts, episodes=episodes))
    assert scored.token_staleness(7) == (2 + 0 + 2) / 3


def test_the_reward_is_on_the_last_token_of_each_response(scored_rollouts):
    batch = scored_rollouts([0.5, None, 2.0], lengths=[1, 2, 3]).experience()
    assert batch.rewards.tolist() == [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 2.0]]
    assert batch.response_mask.sum(1).tolist() == [1, 0, 3]
    assert batch.rewards.dtype is torch.float32


def test_scores_are_0_where_there_is_none():
    values, there = score_tensors([RewardResult(0.0), RewardResult(None, error="x"), RewardResult(-2.0)])
    assert (values.tolist(), there.tolist()) == ([0.0, 0.0, -2.0], [True, False, True])


def test_joined_batches_keep_their_baselines(scored_rollouts):
    parts = []
    for score in (1.0, 2.0):
        rollouts = scored_rollouts([score])
        parts.append(ScoredRollouts(rollouts.rollouts, rollouts.results, [RewardResult(10 * score)]))
    joined = ScoredRollouts.join(parts)
    assert scores(joined.greedy_results) == [10.0, 20.0]
    assert scores(joined.select([1]).greedy_results) == [20.0]
    assert ScoredRollouts.join([scored_rollouts([1.0]), scored_rollouts([2.0])]).greedy_results is None
    assert ScoredRollouts.join(parts[:1]) is parts[0]


def row(episode, prompt, tokens, turn_ids):
    return Row(episode, prompt, Completion(tokens, [0.0] * len(tokens), "stop", 0), None, turn_ids)


def test_observations_are_equal_for_turns_that_read_the_same_since_the_turn_before():
    rows = [
        row(0, [1, 2], [5, 7, 7, 6, 8], [0, -1, -1, 1, 2]),  # reads 1 2; 7 7; nothing
        row(1, [1, 2], [6, 9, 6, 7, 7, 5], [0, -1, 1, -1, -1, 2]),  # reads 1 2; 9; 7 7
        row(1, [1, 2, 3], [4], [3]),  # a branch reads its whole prompt
    ]
    found = observations(rows).tolist()
    assert found == [[0, 1, 2, -1], [0, 3, 1, 4]]


def test_a_batch_without_a_trained_turn_has_no_observation():
    assert observations([row(0, [1], [5], [-1])]).tolist() == [[-1]]
