"""Batches, each once and in its order, no further ahead and no older than is allowed."""

import threading
from types import SimpleNamespace

import pytest

from corerl.data.sampler import PromptSampler
from corerl.errors import RunError
from corerl.rollout.stream import Pipeline

SECONDS = 20


class Collector:
    """Draws the prompts of each step; ``version`` is that of the weights which were sent last."""

    def __init__(self, scored_rollouts, versions=None):
        self.make, self.version, self.drawn, self.versions = scored_rollouts, 0, [], versions
        self.began = threading.Semaphore(0)

    def collect(self, step, draw, timers):
        with timers("gen"):
            self.drawn.append((step, self.version, draw()))
            self.began.release()
        batch = self.make([1.0, 0.0], version=self.version)
        if self.versions:
            for completion, version in zip(batch.rollouts.completions, self.versions, strict=True):
                object.__setattr__(completion, "weight_version", version)
        return batch, {"training/num_gen_batches": float(step)}


@pytest.fixture
def pipeline(scored_rollouts):
    """``pipeline(max_staleness, total_steps)`` over ten prompts, two to a step, and its collector."""
    opened = []

    def make(max_staleness=0, total_steps=5, versions=None):
        collector = Collector(scored_rollouts, versions)
        prompts = [f"prompt {number}" for number in range(10)]
        sampler = PromptSampler(10, 2, shuffle=False, seed=0)
        opened.append(Pipeline(collector, prompts, sampler, max_staleness=max_staleness, total_steps=total_steps))
        return opened[-1], collector

    yield make
    for each in opened:
        each.close()


def steps(collector):
    return [step for step, *_ in collector.drawn]


def test_without_staleness_a_batch_is_collected_when_it_is_asked_for(pipeline):
    batches, collector = pipeline()
    for step in (1, 2):
        collector.version = step - 1
        collected = batches.batch(step)
        assert steps(collector) == list(range(1, step + 1))
        assert collected.metrics == {
            "training/num_gen_batches": float(step),
            "training/epoch": 0.0,
            "training/staleness/mean": 0.0,
            "training/staleness/max": 0.0,
        }
        assert set(collected.seconds) == {"gen"}
        assert not collected.background
        assert collected.sampler["position"] == step
    assert [prompts for *_, prompts in collector.drawn] == [["prompt 0", "prompt 1"], ["prompt 2", "prompt 3"]]


def test_batches_are_collected_ahead_in_their_order_each_once_and_none_beyond_the_last_step(pipeline):
    batches, collector = pipeline(max_staleness=2, total_steps=4)
    for step in range(1, 5):
        collected = batches.batch(step)
        collector.version = step
        assert collected.metrics["training/num_gen_batches"] == step
        assert collected.sampler["position"] == step
        assert set(collected.seconds) == {"wait"}
        assert set(collected.background) == {"gen"}
        ahead = min(step + 2, 4)
        while len(collector.drawn) < ahead:
            assert collector.began.acquire(timeout=SECONDS)
        assert steps(collector) == list(range(1, ahead + 1))


def test_a_batch_is_not_begun_before_the_weights_that_it_may_lag_have_been_sent(pipeline):
    batches, collector = pipeline(max_staleness=1, total_steps=9)
    for step in range(1, 7):
        batches.batch(step)
        collector.version = step
    batches.close()
    assert all(version >= step - 1 - 1 for step, version, _ in collector.drawn)


def test_the_lag_of_a_batch_is_a_metric_and_one_too_old_ends_the_run(pipeline):
    batches, _ = pipeline(max_staleness=2, versions=(1, 2))
    assert batches._staleness(4, SimpleNamespace(staleness=lambda step: [2, 1])) == {
        "training/staleness/mean": 1.5,
        "training/staleness/max": 2.0,
    }
    old, _ = pipeline(versions=(3, 1))
    with pytest.raises(RunError) as error:
        old.batch(4)
    assert str(error.value) == (
        "a response started with weights of version 1, 2 updates older than the policy's; the limit is "
        "trainer.max_staleness=0"
    )


def test_an_error_of_a_batch_reaches_the_step_that_asks_for_it(pipeline):
    batches, collector = pipeline(max_staleness=1)
    collector.make = lambda *_, **__: (_ for _ in ()).throw(RunError("the engine ended"))
    with pytest.raises(RunError, match="the engine ended"):
        batches.batch(1)


def test_nothing_is_begun_after_close(pipeline):
    batches, collector = pipeline(max_staleness=1)
    batches.close()
    with pytest.raises(RuntimeError):
        batches.batch(1)
    assert collector.drawn == []
