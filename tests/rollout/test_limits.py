"""The number of samples under way, by reports of engines."""

import asyncio
import dataclasses

import pytest

from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest, SamplingParams
from corerl.rollout import request_queue
from corerl.rollout.limits import EngineLimit
from corerl.rollout.request_queue import RequestQueue


class Reports:
    """A limit, and what the engine reports next."""

    def __init__(self, **load):
        self.load = EngineLoad(**load)
        self.limit = EngineLimit(lambda: self.load)
        self.limit.begins(0)

    def next(self, ended=0, **load):
        """The most samples after a report."""
        self.load = dataclasses.replace(self.load, **load)
        self.limit.ended(ended)
        self.limit.look()
        return int(self.limit._most)


def test_an_engine_that_reports_nothing_has_no_limit():
    limit = EngineLimit(lambda: None)
    assert limit.begins(10**6) and limit.fits(10**6)
    limit.look()
    assert limit.fits(10**6) and limit.measured() == {}


def test_at_first_as_many_are_sent_as_the_engine_computes_and_a_few_that_wait():
    limit = Reports(room=256).limit
    assert limit.fits(256 + 16) and not limit.fits(256 + 17)


def test_a_queue_that_stands_in_the_engine_lowers_the_number_and_a_few_stay():
    one = Reports(room=256)
    for waiting in (200, 190, 210, 195):
        most = one.next(ended=16, running=64, waiting=waiting, cache_usage=0.5)
    assert most == 64 + 4
    for _ in range(4):
        most = one.next(ended=8, running=64, waiting=3, cache_usage=0.5)
    assert most == 64 + 4


def test_samples_that_take_the_places_of_ended_ones_are_no_queue():
    one = Reports(room=256)
    for running, waiting in ((256, 0), (200, 56), (256, 0), (190, 66), (250, 6)):
        assert one.next(running=running, waiting=waiting) == 256 + 16


def test_samples_that_an_engine_is_slow_to_begin_are_no_queue():
    one = Reports(room=1024)
    for _ in range(40):
        assert one.next(running=64, waiting=448) == 1024 + 64
    assert one.next(running=512, waiting=0) == 1024 + 64


def test_a_report_between_the_end_of_many_samples_and_the_begin_of_others_does_not_count_alone():
    one = Reports(room=1024)
    for _ in range(8):
        one.next(running=396, waiting=116, cache_usage=0.99)
    assert one.next(ended=396, running=17, waiting=116, cache_usage=0.02) == 396 + 24
    assert one.next(running=116, waiting=0, cache_usage=0.1) == 396 + 24


def test_a_preemption_that_is_reported_after_the_end_of_samples_leaves_those_before_it():
    one = Reports(room=1024)
    one.next(running=396, waiting=110, cache_usage=0.99)
    assert one.next(ended=376, running=17, waiting=113, preempted=3, cache_usage=0.02) == 393


def test_a_preemption_lowers_the_number_to_those_left_running_and_each_is_counted_once():
    one = Reports(room=256)
    assert one.next(running=160, waiting=9, preempted=9, cache_usage=1.0) == 160
    assert one.next(running=150, waiting=0, cache_usage=0.95) == 160
    assert one.next(running=150, waiting=10, preempted=10, cache_usage=1.0) == 150
    assert one.limit.measured()["rollout/requests/preempted"] == 10


def test_a_preemption_counts_beside_a_queue_that_stood_before_it():
    one = Reports(room=256)
    one.next(ended=60, running=100, waiting=90)
    assert one.next(ended=40, running=80, waiting=90, preempted=2) == 98


def test_the_number_is_not_lowered_again_before_the_last_time_came_into_effect():
    one = Reports(room=256)
    assert one.next(running=100, waiting=150, preempted=9, cache_usage=1.0) == 100
    assert one.next(running=90, waiting=155, preempted=14, cache_usage=1.0) == 100
    assert one.next(running=95, waiting=5, preempted=16, cache_usage=1.0) == 95


def test_the_number_grows_by_an_eighth_in_a_turnover_unless_the_cache_is_full():
    one = Reports(room=160)
    one.next(running=80, preempted=1, cache_usage=1.0)
    assert one.next(ended=80, running=80, cache_usage=0.5) == 90
    assert one.next(ended=80, running=90, cache_usage=0.95) == 90


def test_the_number_does_not_grow_while_fewer_samples_are_under_way():
    one = Reports(room=160)
    one.next(running=80, preempted=1, cache_usage=1.0)
    for _ in range(20):
        assert one.next(ended=20, running=40, cache_usage=0.1) == 80


def test_the_number_grows_no_further_than_the_room_of_the_engines():
    one = Reports(room=160)
    one.next(running=80, preempted=1, cache_usage=1.0)
    for _ in range(40):
        most = one.next(ended=40, running=one.limit._most, cache_usage=0.5)
    assert most == 160 + 10
    assert one.next(ended=170, running=160, waiting=0, cache_usage=0.2) == 160 + 10


def test_an_engine_that_starts_again_counts_anew():
    one = Reports(room=64)
    one.next(running=60, preempted=5)
    assert one.next(running=60, preempted=0) == 60
    assert one.next(running=48, preempted=1) == 48


def test_metrics_are_those_since_the_last_time():
    one = Reports(room=64)
    assert one.limit.measured() == {}
    one.next(running=64, waiting=2, cache_usage=0.5)
    one.next(running=64, waiting=4, cache_usage=0.25)
    assert one.limit.measured() == {
        "rollout/requests/limit": 68.0,
        "rollout/requests/waiting_in_engine": 3.0,
        "rollout/requests/preempted": 0.0,
        "rollout/kv_cache_usage/max": 0.5,
    }
    assert one.limit.measured() == {}


class Continuous:
    """An engine with ``room`` for samples, and a cache of so many tokens, which preempts the latest sample.

    Attributes:
        waited: samples in its queue, at each step.
    """

    def __init__(self, room, cache):
        self.room, self.cache, self.running, self.waiting = room, cache, [], []
        self.preempted, self.waited = 0, []

    def load(self):
        tokens = sum(tokens for tokens, *_ in self.running)
        counts = len(self.running), len(self.waiting), self.preempted
        return EngineLoad(self.room, *counts, tokens / self.cache)

    async def generate(self, requests, on_finished):
        done = [asyncio.Event() for _ in requests]
        for position, each in enumerate(requests):
            self.waiting.append([1, each.sampling.max_tokens, done[position]])
        for position, event in enumerate(done):
            await event.wait()
            on_finished(position, [Completion([1], [-1.0], "stop", 0)])

    async def run(self):
        """A token of each sample in a step."""
        while True:
            await asyncio.sleep(0.0005)
            while self.waiting and len(self.running) < self.room and self.used() + self.waiting[0][0] < self.cache:
                self.running.append(self.waiting.pop(0))
            for each in self.running:
                each[0] += 1
            while self.used() > self.cache:
                self.waiting.insert(0, self.running.pop())
                self.preempted += 1
            for each in [each for each in self.running if each[0] >= each[1]]:
                each[2].set()
                self.running.remove(each)
            self.waited.append(len(self.waiting))

    def used(self):
        return sum(tokens for tokens, *_ in self.running)


@pytest.mark.parametrize("is_limited", [True, False])
def test_an_engine_with_a_small_cache_preempts_less_and_its_queue_stays_short(monkeypatch, is_limited):
    monkeypatch.setattr(request_queue, "LOOK", 0.005)
    engine = Continuous(room=64, cache=64 * 16)

    async def work():
        queue = RequestQueue(engine.generate, None, engine.load if is_limited else None)
        running = asyncio.create_task(engine.run())
        asked = (queue.complete(GenerationRequest(str(number), [1], SamplingParams(64))) for number in range(600))
        await asyncio.gather(*asked)
        running.cancel()
        return queue.measured()

    measured = asyncio.run(work())
    middle = engine.waited[len(engine.waited) // 4 : -len(engine.waited) // 4]
    if is_limited:
        assert engine.preempted < 800 and sum(middle) / len(middle) < 8
        assert 16 < measured["rollout/requests/limit"] < 64  # 32 of the mean length fit
    else:
        assert engine.preempted > 1200 and sum(middle) / len(middle) > 100 and not measured
