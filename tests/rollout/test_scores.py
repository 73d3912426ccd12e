"""Scores of responses that come one by one."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt
from corerl.errors import RunError
from corerl.rollout.scores import Scores


class Whole:
    """Each score says how many responses the manager was asked about at a time."""

    def __init__(self):
        self.asked = []

    def score(self, requests):
        self.asked.append([request.response for request in requests])
        return [RewardResult(float(len(requests))) for _ in requests]

    def close(self):
        pass


class AtOnce(Whole):
    def submit(self, requests):
        scored = Future()
        scored.set_result(self.score(requests))
        return scored


class Later(Whole):
    def submit(self, requests):
        return SimpleNamespace(result=lambda: self.score(requests))


class InThreads(Whole):
    def submit(self, requests):
        return ThreadPoolExecutor(1).submit(self.score, requests)


def responses(*names):
    completions = [Completion([1], [0.0], "stop", 0) for _ in names]
    return Rollouts([Prompt(0, (1,), [], "s", None, {})] * len(names), completions, list(names), [0] * len(names))


PARTS = [(2, responses("e", "f")), (0, responses("a")), (1, responses("b", "c", "d"))]


async def score_part(scores, place, rollouts, seconds=0.0):
    with scores.expecting("batch", place) as part:
        await asyncio.sleep(seconds)
        return await scores.of(part, rollouts)


def scored(reward):
    """The scores of three parts of one batch, by place."""

    async def score():
        scores = Scores(reward, 8)
        results = await asyncio.gather(*(score_part(scores, place, part) for place, part in PARTS))
        assert not scores._batches
        return {place: each and [one.score for one in each] for (place, _), each in zip(PARTS, results, strict=True)}

    return asyncio.run(score())


@pytest.mark.parametrize("manager", [AtOnce, Later, InThreads])
def test_a_manager_that_takes_parts_is_given_each(manager):
    reward = manager()
    assert scored(reward) == {0: [1.0], 1: [3.0] * 3, 2: [2.0] * 2}
    assert sorted(reward.asked) == [["a"], ["b", "c", "d"], ["e", "f"]]


def test_a_manager_of_whole_batches_is_asked_once_when_all_parts_are_there_in_their_order():
    reward = Whole()
    assert scored(reward) == {0: [6.0], 1: [6.0] * 3, 2: [6.0] * 2}
    assert reward.asked == [list("abcdef")]


def test_without_a_manager_there_are_no_scores():
    assert scored(None) == {0: None, 1: None, 2: None}


@pytest.mark.parametrize("manager", [Whole, AtOnce])
def test_a_manager_that_breaks_its_contract_ends_the_run(manager):
    reward = manager()
    reward.score = lambda requests: [RewardResult(float("nan"))] * len(requests)
    with pytest.raises(RunError, match="a score must be finite"):
        scored(reward)


def test_a_part_that_fails_leaves_its_batch_which_is_scored_without_it():
    async def fail(scores):
        with scores.expecting("batch", 1):
            await asyncio.sleep(0.05)
            raise RunError("no response")

    async def work():
        scores = Scores(reward := Whole(), 8)
        results = await asyncio.gather(
            score_part(scores, 0, responses("a")),
            fail(scores),
            score_part(scores, 2, responses("b", "c")),
            return_exceptions=True,
        )
        assert [len(each) for each in (results[0], results[2])] == [1, 2]
        assert reward.asked == [["a", "b", "c"]] and not scores._batches
        again = await asyncio.gather(*(score_part(scores, place, responses("d")) for place in (0, 1)))
        assert reward.asked[1:] == [["d", "d"]] and len(again) == 2

    asyncio.run(work())


def test_a_part_that_is_cancelled_while_it_waits_for_the_others_leaves_its_batch():
    async def work():
        scores = Scores(reward := Whole(), 8)
        late = asyncio.create_task(score_part(scores, 0, responses("a"), seconds=0.1))
        waiting = asyncio.create_task(score_part(scores, 1, responses("b")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        assert len(await late) == 1
        assert reward.asked == [["a"]] and not scores._batches

    asyncio.run(work())


def test_an_error_of_the_manager_reaches_every_part_of_the_batch():
    reward = Whole()
    reward.score = lambda requests: 1 / 0

    async def work():
        scores = Scores(reward, 8)
        parts = (score_part(scores, place, part) for place, part in PARTS)
        return await asyncio.wait_for(asyncio.gather(*parts, return_exceptions=True), 10)

    assert [type(each) for each in asyncio.run(work())] == [ZeroDivisionError] * 3
