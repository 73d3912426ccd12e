"""The mailbox of a worker, in this process, without a cluster."""

import asyncio
import sys
import threading
import time

from ray_toys import Engine, Generation, request, until

from corerl.contracts.rollout_backends import EngineLoad
from corerl.errors import EngineDeadError
from corerl_ray.host import Failure
from corerl_ray.mailbox import Answer, Mailbox, Post


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


class Asker:
    """Its calls wait for the answers to two requests, at the same time; ``leaves`` ends without them."""

    def __init__(self):
        self.answers, self.cancelled, self.sent = [], 0, []

    async def ask(self, requests, on_finished, engines):
        if requests == ["leaves"]:
            self.left = asyncio.create_task(self.one(engines, "a"))
            await asyncio.sleep(0)
            return
        on_finished(0, await asyncio.gather(*(self.one(engines, name) for name in requests)))

    async def one(self, engines, name):
        try:
            return await engines.complete(request(name), self.sent.append)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def collected(box, number, wanted):
    """Collections until there is this kind of news of a call."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        news = box.collect(60.0).news.get(number)
        if news is not None and getattr(news, wanted):
            return news
    raise AssertionError(wanted)


def test_requests_of_a_call_are_collected_and_answered_in_any_order():
    worker = Asker()
    box = Mailbox(worker, Failure.of)
    box.post([Post(4, "ask", ["a", "b"], asks=True)])
    asked = collected(box, 4, "asked").asked
    a, b = asked
    assert [one.request_id for one in asked.values()] == ["a", "b"]
    box.answer([Answer(b, ["second"], 0.5), Answer(99, [])])
    box.answer([Answer(a, ["first"], 0.25)])
    news = collected(box, 4, "is_over")
    assert news.finished == {0: [["first"], ["second"]]} and news.failure is None
    assert worker.sent == [0.5, 0.25] and not box._asked


def test_a_failed_answer_is_an_error_of_its_kind_and_the_other_request_is_withdrawn():
    worker = Asker()
    box = Mailbox(worker, Failure.of)
    box.post([Post(4, "ask", ["a", "b"], asks=True)])
    first, _ = collected(box, 4, "asked").asked
    box.answer([Answer(first, (), failure=Failure.of(EngineDeadError("no engine is left")))])
    error = collected(box, 4, "is_over").failure.error("it")
    assert isinstance(error, EngineDeadError) and str(error).endswith("no engine is left")
    until(lambda: worker.cancelled == 1 and not box._asked)


def test_requests_of_a_call_that_is_over_or_cancelled_wait_no_more():
    worker = Asker()
    box = Mailbox(worker, Failure.of)
    box.post([Post(1, "ask", ["leaves"], asks=True)])
    assert collected(box, 1, "is_over").failure is None
    until(lambda: worker.left.cancelled())
    box.post([Post(2, "ask", ["a", "b"], asks=True)])
    assert len(collected(box, 2, "asked").asked) == 2
    box.cancel([2])
    until(lambda: worker.cancelled == 3 and not box._asked)


def test_the_event_loop_ends_with_its_calls():
    worker = Asker()
    box = Mailbox(worker, Failure.of)
    box.post([Post(2, "ask", ["a", "b"], asks=True)])
    collected(box, 2, "asked")
    box.end(10.0)
    assert worker.cancelled == 2 and not box._thread.is_alive() and box.asks


def test_a_call_that_exits_or_leaks_a_cancellation_fails_alone():
    class Ends:
        async def ends(self, requests, on_finished):
            [how] = requests
            if how == "exits":
                sys.exit(3)
            if how == "a task exits":
                await asyncio.create_task(self.ends(["exits"], on_finished))
            if how == "leaks":
                asyncio.current_task().cancel()
            await asyncio.sleep(0)
            on_finished(0, how)

    box = Mailbox(Ends(), Failure.of)
    for number, how in enumerate(("exits", "a task exits", "leaks")):
        box.post([Post(number, "ends", [how])])
        error = collected(box, number, "is_over").failure.error("it")
        assert "ends() of a worker raised " in str(error)
    box.post([Post(9, "ends", ["goes on"])])
    assert collected(box, 9, "is_over").failure is None
