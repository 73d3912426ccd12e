"""Scores of responses that come one by one."""

import time
from types import SimpleNamespace

import pytest

from corerl.batch.rollouts import Rollouts
from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt
from corerl.seeding import Seeds
from corerl.telemetry.timers import Timers
from corerl.rollout.scores import Arrivals
from corerl.rollout.scored import Collector
from corerl_testing.tiny_model import tiny_model

SLOW = 0.04


class Whole:
    """Asked once for a batch: each score says how large it was."""

    def __init__(self):
        self.asked = []

    def score(self, requests):
        self.asked.append([request.response for request in requests])
        return [RewardResult(float(len(requests))) for _ in requests]

    def close(self):
        pass


class Parts(Whole):
    def submit(self, requests):
        return SimpleNamespace(result=lambda: self.score(requests))


def part(*rows):
    """Responses named by their rows."""
    names = [str(row) for row in rows]
    prompts = [Prompt(row // 2, (1,), [], "s", None, {}) for row in rows]
    return rows, Rollouts(prompts, [Completion([row], [0.0], "stop", 0) for row in rows], names, [0] * len(rows))


def arrived(reward):
    arrivals = Arrivals(2, reward, 8)
    for rows, responses in (part(4, 5), part(1), part(0, 3, 2)):
        arrivals.add(rows, responses)
    return arrivals


def test_responses_and_scores_stand_where_they_belong_in_whatever_order_they_came():
    arrivals = arrived(Parts())
    rollouts = arrivals.rollouts()
    assert rollouts.responses == list("012345")
    assert rollouts.group_ids == [0, 0, 1, 1, 2, 2]
    assert [result.score for result in arrivals.results()] == [3.0, 1.0, 3.0, 3.0, 2.0, 2.0]


def test_a_manager_that_takes_no_parts_is_asked_once_for_the_batch_in_its_order():
    reward = Whole()
    arrivals = arrived(reward)
    assert reward.asked == []
    assert [result.score for result in arrivals.results()] == [6.0] * 6
    assert reward.asked == [list("012345")]


def test_without_a_manager_there_are_no_scores():
    assert arrived(None).results() is None


def slow(response, ground_truth, data_source, extra_info):
    time.sleep(SLOW)
    return {"score": float(len(response)), "half": len(response) / 2}


def collected(reward):
    """A batch of 12 responses of different lengths from ``hf``, with its scores; seconds by part."""
    from corerl.rollout.worker import RolloutWorker

    config = TrainConfig(
        model=ModelConfig(path=str(tiny_model()), dtype="fp32"),
        data=DataConfig(max_response_length=250),
        rollout=RolloutConfig(n=2),
    )
    config.actor.device = "cpu"
    letters = tuple(range(97, 101))  # a few bytes that end a response: lengths differ widely
    tokenizer = SimpleNamespace(stop_token_ids=letters, decode=lambda rows: [str(list(ids)) for ids in rows])
    worker = RolloutWorker(config)
    collector = Collector(config, worker, reward, tokenizer, Seeds(3), greedy_baseline=True, batch_filter=None)
    prompts = [Prompt(index, (72, 101, 50 + index), [], "s", "", {}) for index in range(4)]
    timers = Timers()
    batch = collector.sample(prompts, 1, 0, timers)
    worker.close()
    return batch, timers.seconds


def test_scoring_overlaps_with_generation_and_changes_nothing():
    naive = pytest.importorskip("corerl_rewards.naive").NaiveRewardManager({"s": slow}, num_workers=1, timeout=9.0)
    pytest.importorskip("corerl_hf")
    batch, seconds = collected(naive)
    whole, one_after_the_other = collected(SimpleNamespace(score=naive.score))
    assert batch == whole
    assert len({len(completion.token_ids) for completion in batch.rollouts.completions}) > 5
    assert one_after_the_other["reward"] > 12 * SLOW
    assert sum(seconds.values()) < seconds["gen"] + 0.85 * one_after_the_other["reward"]
