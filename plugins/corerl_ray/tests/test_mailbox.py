"""The mailbox of a worker, in this process, without a cluster."""

import threading
import time

from ray_toys import Engine, Generation, request, until

from corerl.contracts.rollout_backends import EngineLoad
from corerl.errors import EngineDeadError
from corerl_ray.host import Failure
from corerl_ray.mailbox import Mailbox, Post


class Collector:
    """A mailbox, and what was collected from it so far."""

    def __init__(self, worker):
        self.worker, self.box = worker, Mailbox(worker, Failure.of)
        self.finished, self.over, self.collections = {}, {}, 0

    def post(self, number, *requests):
        self.box.post([Post(number, "generate", requests)])

    def collect(self, seconds=60.0):
        self.collections += 1
        for number, news in self.box.collect(seconds).news.items():
            assert number not in self.over
            found = self.finished.setdefault(number, {})
            assert not found.keys() & news.finished.keys()
            found |= news.finished
            if news.is_over:
                self.over[number] = news.failure

    def until_over(self, *numbers):
        while not self.over.keys() >= set(numbers):
            self.collect()


def test_results_come_while_the_rest_runs():
    one = Collector(Engine())
    one.post(7, request("slow", seconds=600.0), request("a"), request("b", n=2))
    while len(one.finished.get(7, ())) < 2:
        one.collect()
    assert one.finished == {7: {1: ["a"], 2: ["b", "b"]}} and one.worker.running == 4 and not one.over
    one.worker.abort()
    one.until_over(7)
    assert one.finished[7][0] == ["slow"] and one.over == {7: None} and one.worker.running == 0


def test_a_failure_comes_after_the_results():
    one = Collector(Engine())
    one.worker.left_to_live = 1
    one.post(0, request("a"), request("b", seconds=0.1))
    one.until_over(0)
    assert one.finished == {0: {0: ["a"]}}
    assert isinstance(one.over[0], Failure) and isinstance(one.over[0].error("it"), EngineDeadError)


def test_calls_overlap_in_one_thread_and_their_results_come_together():
    one, before = Collector(Engine()), threading.active_count()
    for number in range(200):
        one.post(number, request(number, seconds=1.0))
    until(lambda: one.worker.running == 200)
    assert threading.active_count() <= before + 1
    one.until_over(*range(200))
    assert one.finished == {number: {0: [str(number)]} for number in range(200)}
    assert one.collections < 50


def test_a_cancelled_call_ends_and_is_no_news_even_if_it_comes_after_its_end():
    one = Collector(Engine())
    one.post(1, request("slow", seconds=600.0))
    until(lambda: one.box._tasks)
    one.box.cancel([1, 2])
    one.post(2, request("b"))
    one.post(3, request("c"))
    one.until_over(3)
    until(lambda: not one.box._tasks)
    assert one.finished == {3: {0: ["c"]}} and not one.box._unwanted
    assert [name for call in one.worker.calls for name in call] == ["slow", "c"]


def test_without_news_a_collection_ends_in_time():
    began = time.monotonic()
    assert Collector(Engine()).box.collect(0.2) == ({}, None)
    assert 0.2 <= time.monotonic() - began < 60


def test_another_load_of_the_engine_ends_a_collection():
    class Reporting(Engine):
        load = EngineLoad(room=8)

        def engine_load(self):
            return self.load

    box = Mailbox(Reporting(), Failure.of)
    assert box.collect(600.0) == ({}, EngineLoad(room=8))
    threading.Timer(0.3, lambda: setattr(Reporting, "load", EngineLoad(room=8, running=3))).start()
    assert box.collect(600.0) == ({}, EngineLoad(room=8, running=3))


def test_the_calls_of_these_tests_report_each_request_once():
    assert Generation(Engine(), [request("a"), request("b", n=2)]).result() == [["a"], ["b", "b"]]
