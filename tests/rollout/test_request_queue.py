"""Requests of one turn of the event loop, and those that nobody waits for any more."""

import asyncio
import gc

import pytest

from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.errors import RunError, WorkerLateError
from corerl.rollout import request_queue
from corerl.rollout.event_loop import EventLoop
from corerl.rollout.request_queue import RequestQueue

TEXT = [Completion([1], [-1.0], "stop", 0)]


class Engine:
    """Answers all but the requests named "silent"; the request "endless" keeps it."""

    def __init__(self):
        self.calls = []

    async def generate(self, requests, on_finished):
        self.calls.append([request.request_id for request in requests])
        for position, request in enumerate(requests):
            if request.request_id == "endless":
                await asyncio.sleep(600)
            if request.request_id != "silent":
                on_finished(position, TEXT)


def request(name, *, session="", max_tokens=1):
    return GenerationRequest(name, [1], SamplingParams(max_tokens), session=session)


def test_requests_of_one_turn_are_one_call_and_those_of_the_next_another():
    engine = Engine()
    queue = RequestQueue(engine.generate)

    async def ask():
        first = [await asyncio.gather(*(queue.complete(request(name)) for name in "ab"))]
        return [*first, await queue.complete(request("c"))]

    assert asyncio.run(ask()) == [[TEXT, TEXT], TEXT]
    assert engine.calls == [["a", "b"], ["c"]]


def test_a_request_that_the_engines_say_nothing_about_is_an_error():
    queue = RequestQueue(Engine().generate)
    with pytest.raises(RunError, match="the engines gave no responses to request 'silent'"):
        asyncio.run(queue.complete(request("silent")))


def test_a_request_that_is_given_up_before_it_is_sent_is_not_sent():
    engine = Engine()
    queue = RequestQueue(engine.generate)

    async def ask():
        given_up, other = (asyncio.create_task(queue.complete(request(name))) for name in ("endless", "a"))
        await asyncio.sleep(0)
        given_up.cancel()
        return await asyncio.wait_for(other, 10)

    assert asyncio.run(ask()) == TEXT
    assert engine.calls == [["a"]]


@pytest.mark.parametrize("turns", [0, 5], ids=["before it is sent", "in the engine"])
def test_a_loop_that_is_closed_leaves_no_call_behind(turns, caplog):
    loop, tasks = EventLoop(background=False), []

    async def begin(queue):
        tasks.append(asyncio.create_task(queue.complete(request("endless"))))
        for _ in range(turns):
            await asyncio.sleep(0)

    loop.run(begin(RequestQueue(Engine().generate)))
    loop.close()
    assert tasks.pop().cancelled()
    del loop
    gc.collect()
    assert caplog.messages == []  # "Task was destroyed but it is pending!"


class Held(Engine):
    """Answers a request once it is let go of."""

    def __init__(self):
        super().__init__()
        self.held = {}

    async def generate(self, requests, on_finished):
        self.calls.append([request.request_id for request in requests])

        async def one(position, request):
            self.held[request.request_id] = asyncio.Event()
            await self.held[request.request_id].wait()
            on_finished(position, TEXT * request.sampling.n)

        await asyncio.gather(*(one(position, request) for position, request in enumerate(requests)))


def test_no_more_samples_are_under_way_than_allowed_and_the_others_follow_in_their_order():
    engine, sent = Held(), []
    queue = RequestQueue(engine.generate, most=16)

    async def work():
        names = [f"{number:02}" for number in range(12)]
        asked = {
            name: asyncio.create_task(
                queue.complete(
                    GenerationRequest(name, [1], SamplingParams(1, n=2)), lambda name=name: sent.append(name)
                )
            )
            for name in names
        }
        await asyncio.sleep(0.01)
        assert engine.calls == [names[:8]] == [sent]
        engine.held["03"].set()  # an eighth: more are sent once so many have ended
        await asyncio.sleep(0.01)
        assert engine.calls[1:] == [["08"]]
        for name in ("00", "01", "02"):
            engine.held[name].set()
        asked["09"].cancel()
        await asyncio.sleep(0.01)
        assert [name for call in engine.calls for name in call] == sent == [*names[:9], "10", "11"]
        for name in sent:
            engine.held[name].set()
        await asyncio.wait_for(asyncio.wait(asked.values()), 10)
        assert asked["09"].cancelled() and queue._under_way == 0

    asyncio.run(work())


def test_a_request_of_more_samples_than_allowed_is_sent_alone():
    engine = Engine()

    async def work():
        queue = RequestQueue(engine.generate, most=2)
        large = GenerationRequest("large", [1], SamplingParams(1, n=5))
        await asyncio.gather(queue.complete(large), queue.complete(request("a")))
        assert queue._under_way == 0

    asyncio.run(work())
    assert engine.calls == [["large"], ["a"]]


def test_a_call_that_fails_makes_room():
    async def generate(requests, on_finished):
        calls.append(len(requests))
        raise RunError("no")

    async def work():
        queue = RequestQueue(generate, most=1)
        return await asyncio.gather(*(queue.complete(request(name)) for name in "ab"), return_exceptions=True)

    calls = []
    assert [str(error) for error in asyncio.run(work())] == ["no", "no"] and calls == [1, 1]


@pytest.mark.parametrize("most", [2, 16])
def test_later_turns_of_begun_episodes_go_before_new_groups(most):
    engine = Held()

    async def work():
        queue = RequestQueue(engine.generate, most=most)

        async def ask(*requests):
            asked = [asyncio.create_task(queue.complete(each)) for each in requests]
            await asyncio.sleep(0.01)
            return asked

        async def end(*names):
            for name in names:
                engine.held[name].set()
            await asyncio.sleep(0.01)

        first = await ask(request("a0", session="a"), request("b0", session="b"))
        await end("a0", "b0")
        full = await ask(*(request(f"x{number}") for number in range(most)))
        new = await ask(request("new0"), request("new1"))
        later = await ask(request("a1", session="a"), request("b1", session="b"))
        await end("x0")
        await end("x1")
        assert list(engine.held)[2 + most :] == ["a1", "b1"]
        await end(*(f"x{number}" for number in range(2, most)), "a1", "b1")
        await end("new0", "new1")
        await asyncio.wait_for(asyncio.gather(*first, *full, *new, *later), 10)
        assert list(engine.held)[4 + most :] == ["new0", "new1"]

    asyncio.run(work())


def test_the_sessions_that_have_begun_are_bounded(monkeypatch):
    monkeypatch.setattr(request_queue, "SESSIONS", 2)
    queue = RequestQueue(Engine().generate)

    async def work():
        for name in "abac":
            await queue.complete(request(name, session=name))

    asyncio.run(work())
    assert list(queue._begun) == ["a", "c"]


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["one request", "the whole call"])
def test_what_nobody_awaits_any_more_is_ended_in_the_engine(is_cancelled):
    aborted = []

    async def abort(request_ids):
        aborted.append(list(request_ids))

    async def ask():
        queue = RequestQueue(Engine().generate, abort=abort)
        others = asyncio.create_task(queue.complete(request("a")))
        given_up = asyncio.create_task(queue.complete(request("endless")))
        await asyncio.sleep(0.01)
        if is_cancelled:
            for call in queue._calls:
                call.cancel()
        given_up.cancel()
        await asyncio.gather(others, given_up, return_exceptions=True)
        await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert aborted == ([] if is_cancelled else [["endless"]])


def test_a_request_that_is_given_up_before_it_is_sent_is_not_ended_in_the_engine():
    aborted = []

    async def abort(request_ids):
        aborted.append(list(request_ids))

    async def ask():
        queue = RequestQueue(Engine().generate, 1, abort=abort)
        first, second = (asyncio.create_task(queue.complete(request(name))) for name in ("endless", "waiting"))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.sleep(0.01)
        assert aborted == []
        first.cancel()
        await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert aborted == [["endless"]]


def test_an_engine_that_does_not_end_what_was_given_up_has_a_deadline(monkeypatch):
    monkeypatch.setattr(request_queue, "IDLE", 0.02)

    async def abort(request_ids):
        await asyncio.sleep(60)

    async def ask():
        queue = RequestQueue(Engine().generate, abort=abort)
        await queue.complete(request("a"))
        await queue.idle()
        given_up = asyncio.create_task(queue.complete(request("endless")))
        await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await queue.idle()

    with pytest.raises(WorkerLateError, match=r"^the engines have not ended requests without callers within 0.02 s$"):
        asyncio.run(ask())
