"""Engines that end: what is started again, sent again and asked again."""

import asyncio
import threading

import pytest

from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import EngineDeadError, EngineFailsError
from corerl.rollout import engines as rollout_engines
from corerl.rollout.engines import Engines


class Group:
    """Rollout workers and the runtime that sends them weights: ends at the named calls, and writes all calls down.

    ``dies``: operation -> how often it fails before it works.
    """

    def __init__(self, **dies):
        self.dies, self.calls = dies, []

    def _do(self, call):
        self.calls.append(call)
        operation = call[0]
        if self.dies.get(operation, 0):
            self.dies[operation] -= 1
            raise EngineDeadError(f"the engine ended in {operation}")

    def sleep(self):
        self._do(("sleep",))

    def wake(self, *, kv_cache=True):
        self._do(("wake", kv_cache))

    def restart(self):
        self.calls.append(("restart",))

    def send_weights(self, actor, rollout, version, *, verify=False):
        assert (actor, rollout) == ("the actor", self)
        self._do(("weights", version, verify))

    async def generate(self, requests, on_finished):
        """Finishes the second request, then ends, if it is to; later the rest."""
        ids = [request.request_id for request in requests]
        self.calls.append(("generate", *ids))
        if self.dies.get("generate", 0):
            self.dies["generate"] -= 1
            on_finished(1, [ids[1]])
            raise EngineDeadError("the engine ended in generate")
        for position, each in enumerate(ids):
            on_finished(position, [each])


def engines(group, max_restarts=3):
    return Engines(group, "the actor", group, max_restarts)


def generated(started):
    """(position, completions) in the order in which they come."""
    told = []
    asyncio.run(started.generate(REQUESTS, lambda position, completions: told.append((position, completions))))
    return told


REQUESTS = [GenerationRequest(name, [1], SamplingParams(4)) for name in "abc"]


def test_an_engine_that_is_started_again_in_wake_gets_the_policys_weights():
    """They were sent to the one that ended, before its KV cache was woken."""
    group = Group()
    started = engines(group)
    started.send_weights(7)
    group.dies["wake"] = 1
    group.calls.clear()
    started.wake()
    assert group.calls == [("wake", True), ("restart",), ("sleep",), ("wake", True), ("weights", 7, True)]
    assert started.restarts == 1


def test_an_engine_that_is_started_again_before_its_weights_come_gets_them_with_the_others():
    group = Group(wake=1)
    engines(group).wake(kv_cache=False)
    assert group.calls == [("wake", False), ("restart",), ("sleep",), ("wake", False)]


def test_an_engine_that_sleeps_is_not_put_to_sleep_again():
    group = Group()
    made = engines(group)
    made.sleep()
    made.sleep()
    made.wake()
    made.sleep()
    assert group.calls == [("sleep",), ("wake", True), ("sleep",)]


def test_an_engine_that_ends_in_sleep_is_started_again_and_put_to_sleep():
    group = Group(sleep=1)
    engines(group).sleep()
    assert group.calls == [("sleep",), ("restart",), ("sleep",)]


def test_engines_that_live_are_asked_once():
    group = Group()
    living = engines(group)
    living.send_weights(2)
    living.send_weights(3, verify=True)
    living.sleep()
    living.wake(kv_cache=False)
    living.wake()
    assert generated(living) == [(0, ["a"]), (1, ["b"]), (2, ["c"])]
    assert group.calls == [
        ("weights", 2, False),
        ("weights", 3, True),
        ("sleep",),
        ("wake", False),
        ("wake", True),
        ("generate", "a", "b", "c"),
    ]
    assert living.restarts == 0


def test_weights_go_to_an_engine_that_is_started_again_until_they_arrive_and_are_verified():
    group = Group(weights=2)
    engines(group).send_weights(5)
    assert group.calls == [
        ("weights", 5, False),
        ("restart",),
        ("weights", 5, True),
        ("restart",),
        ("weights", 5, True),
    ]


def test_what_had_not_finished_is_asked_again_and_each_answer_has_its_place():
    group = Group(generate=2)
    restarted = engines(group)
    restarted.send_weights(4)
    group.calls.clear()
    assert generated(restarted) == [(1, ["b"]), (2, ["c"]), (0, ["a"])]
    again = [("restart",), ("weights", 4, True)]
    assert group.calls == [("generate", "a", "b", "c"), *again, ("generate", "a", "c"), *again, ("generate", "a")]


def test_an_engine_that_another_thread_has_started_again_is_not_started_twice():
    class Shared(Group):
        async def generate(self, requests, on_finished):
            if not restarted.restarts:
                restarted.restarts += 1  # by the thread that sends weights, meanwhile
                raise EngineDeadError("the engine ended")
            await super().generate(requests, on_finished)

    group = Shared()
    restarted = engines(group)
    assert generated(restarted) == [(0, ["a"]), (1, ["b"]), (2, ["c"])]
    assert group.calls == [("generate", "a", "b", "c")]


class Hopeless(Group):
    """Ends at every request; before, the generation with the number ``answers`` finishes one."""

    def __init__(self, *, answers):
        super().__init__()
        self.answers = answers

    async def generate(self, requests, on_finished):
        self.calls.append(("generate",))
        if self.calls.count(("generate",)) == self.answers:
            on_finished(0, ["a"])
        raise EngineDeadError("the engine ended in generate")


@pytest.mark.parametrize(("answers", "generations"), [(None, 3), (1, 3), (2, 4), (3, 5)])
def test_an_engine_that_answers_nothing_is_started_twice(answers, generations):
    group = Hopeless(answers=answers)
    hopeless = engines(group, max_restarts=9)
    with pytest.raises(EngineFailsError, match="has ended 3 times without a response in between: the engine ended"):
        generated(hopeless)
    assert group.calls.count(("generate",)) == generations
    assert group.calls.count(("restart",)) == hopeless.restarts == generations - 1


def test_calls_that_end_with_the_last_engine_start_no_other():
    hopeless = engines(Hopeless(answers=None), max_restarts=9)

    async def together():
        calls = [hopeless.generate(REQUESTS, lambda position, completions: None) for _ in range(4)]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in asyncio.run(together())] == [EngineFailsError] * 4
    assert hopeless.restarts == 2


@pytest.mark.parametrize("allowed", [0, 2])
def test_one_death_more_than_is_allowed_is_raised(allowed, capsys):
    group = Group(weights=allowed + 1)
    restarted = engines(group, allowed)
    with pytest.raises(EngineDeadError) as error:
        restarted.send_weights(1)
    assert str(error.value) == (
        f"rollout.max_restarts = {allowed} allows no further start: the engine ended in weights"
    )
    assert group.calls.count(("restart",)) == restarted.restarts == allowed
    again = "the engine ended in weights; it is started again ({} of rollout.max_restarts = {})"
    assert capsys.readouterr().err.splitlines() == [again.format(number + 1, allowed) for number in range(allowed)]


def test_the_lines_of_a_log_in_an_error_stand_apart_from_the_notice(capsys):
    class Logged(Group):
        def sleep(self):
            self.calls.append(("sleep",))
            if len(self.calls) == 1:
                raise EngineDeadError("the engine ended; its log:\n  out of memory")

    engines(Logged()).sleep()
    assert capsys.readouterr().err.splitlines() == [
        "the engine ended; its log:",
        "  out of memory",
        "it is started again (1 of rollout.max_restarts = 3)",
    ]


def test_an_engine_that_ends_with_the_run_is_not_started_again(capsys):
    class Worker:
        """Ends when the run does, as a thread that generates ahead sees it."""

        async def generate(self, requests, on_finished):
            ending.close()
            raise EngineDeadError("the rollout backend is closed")

    ending = Engines(runtime=None, actor=None, rollout=Worker(), max_restarts=3)
    with pytest.raises(EngineDeadError, match="is closed"):
        generated(ending)
    assert (ending.restarts, capsys.readouterr().err) == (0, "")


def test_a_rollout_worker_that_is_lost_is_counted_and_the_run_goes_on_without_when_no_start_is_left(capsys):
    class Losing(Group):
        def send_weights(self, actor, rollout, version, *, verify=False):
            try:
                super().send_weights(actor, rollout, version, verify=verify)
            except EngineDeadError as error:
                error.workers = (("here", len(self.calls)),)
                raise

    group = Losing(weights=2)
    going_on = engines(group, max_restarts=1)
    going_on.send_weights(3)
    assert group.calls == [("weights", 3, False), ("restart",), ("weights", 3, True), ("weights", 3, True)]
    assert going_on.restarts == 1 and going_on.lost == {("here", 1), ("here", 3)}
    assert "rollout.max_restarts = 1 is reached: the run continues without it" in capsys.readouterr().err


class Several(Group):
    """Two rollout workers: one answers; the other is started again once the test says so."""

    def __init__(self, **dies):
        super().__init__(**dies)
        self.go, self.begun, self.is_up = threading.Event(), threading.Event(), threading.Event()

    def on_loss(self, listener):
        self.listener = listener

    def lose(self):
        error = EngineDeadError("engine 1 ended")
        error.is_handled = True
        self.listener(error)
        return error

    def restart_lost(self):
        self.begun.set()
        assert self.go.wait(60)
        self.calls.append(("restart lost",))

    def send_missing_weights(self, actor, rollout, version):
        self.calls.append(("missing weights", version))
        self.is_up.set()

    async def generate(self, requests, on_finished):
        if self.dies.pop("lost", 0):
            on_finished(0, [requests[0].request_id])
            raise self.lose()
        await super().generate(requests, on_finished)


def test_an_engine_that_ends_beside_others_is_started_in_the_background_and_nobody_waits(capsys):
    group = Several(lost=1)
    going_on = engines(group)
    going_on.send_weights(4)
    assert [position for position, _ in generated(going_on)] == [0, 1, 2]
    assert group.begun.wait(60) and not group.is_up.is_set()
    going_on.send_weights(5)
    with going_on.actor_in_use:  # as while the policy trains: its weights are not to be sent now
        group.go.set()
        assert not group.is_up.wait(0.2)
    assert group.is_up.wait(60)
    assert group.calls[-2:] == [("restart lost",), ("missing weights", 5)]
    assert going_on.restarts == 1
    said = "engine 1 ended; it is started again in the background (1 of rollout.max_restarts = 3)"
    assert capsys.readouterr().err.splitlines() == [said]


def test_memory_that_others_need_is_waited_for_and_nothing_is_started_in_it(monkeypatch, capsys):
    monkeypatch.setattr(rollout_engines, "PATIENCE", 0.05)
    group = Several()
    sharing = engines(group)
    group.lose()
    assert group.begun.wait(60)
    asleep = threading.Thread(target=sharing.sleep)
    asleep.start()
    asleep.join(0.2)
    assert asleep.is_alive() and group.calls == []
    group.go.set()
    asleep.join(60)
    assert group.calls[:1] == [("restart lost",)] and group.calls[-1] == ("sleep",)
    assert group.is_up.wait(60)
    assert "waiting for an engine that is being started again: training needs" in capsys.readouterr().err
    group.begun.clear()
    group.lose()  # while it sleeps
    assert not group.begun.wait(0.2)
    sharing.wake()
    assert group.begun.wait(60) and sharing.restarts == 2


def test_an_engine_beside_others_that_ended_too_often_is_left_out(capsys):
    group = Several(lost=1)
    going_on = engines(group, max_restarts=0)
    assert len(generated(going_on)) == 3
    assert not group.begun.is_set() and going_on.restarts == 0
    said = "engine 1 ended\nrollout.max_restarts = 0 is reached: the run continues without it\n"
    assert capsys.readouterr().err == said


def test_nothing_is_started_in_the_background_of_a_run_that_ends(capsys):
    group = Several()
    ending = engines(group)
    ending.close()
    group.lose()
    assert not group.begun.wait(0.2) and (ending.restarts, capsys.readouterr().err) == (0, "")


def test_a_request_that_comes_while_the_only_engine_is_started_again_waits_for_the_policys_weights():
    """Else weights of ``model.path`` would answer it."""

    class Slow(Group):
        def restart(self):
            super().restart()
            later.start()
            later.join(0.3)

    group = Slow(generate=1)
    waiting = engines(group)
    waiting.send_weights(9)
    later = threading.Thread(target=lambda: generated(waiting))
    generated(waiting)
    later.join(60)
    assert group.calls[2:4] == [("restart",), ("weights", 9, True)]
    assert sorted(call[0] for call in group.calls[4:]) == ["generate", "generate"]
