"""Roles that start at the same time."""

import re
import threading
import time
from contextlib import ExitStack

import pytest

from corerl.errors import ConfigError, RunError
from corerl.trainer import starting
from corerl.trainer.starting import Starts

SECONDS = 30


def test_those_that_may_start_together_do_and_each_result_has_its_name():
    barrier = threading.Barrier(3)

    def start(name):
        barrier.wait(SECONDS)  # breaks unless all three are here
        return name.upper()

    started = Starts().together({name: lambda name=name: start(name) for name in ("actor", "ref", "rollout")})
    assert started == {"actor": "ACTOR", "ref": "REF", "rollout": "ROLLOUT"}


def test_one_alone_and_those_one_by_one_start_in_this_thread():
    starts, here = Starts(), threading.current_thread()
    assert starts.together({"actor": threading.current_thread}) == {"actor": here}
    assert starts.one_by_one(dict.fromkeys("ab", threading.current_thread)) == {"a": here, "b": here}


def test_the_first_error_is_raised_at_once_and_the_other_start_has_ended_when_the_stack_is_unwound():
    closed, ended = threading.Event(), threading.Event()

    def slow():
        assert closed.wait(SECONDS)
        time.sleep(0.2)
        ended.set()
        raise AssertionError("of the closed runtime, which nobody is to see")

    def wrong():
        raise ConfigError("model.path", "there is no model")

    began = time.monotonic()
    with pytest.raises(ConfigError, match="there is no model"), ExitStack() as stack:
        starts = Starts()
        stack.callback(starts.join)
        stack.callback(closed.set)
        starts.together({"rollout": slow, "actor": wrong})
    assert ended.is_set() and time.monotonic() - began < SECONDS


def test_the_terminal_shows_what_is_waited_for_and_how_long(monkeypatch):
    monkeypatch.setattr(starting, "SILENCE", 0.2)
    monkeypatch.setattr(starting, "MINUTE", 0.0)
    seen = threading.Event()
    said = []

    def say(line):
        said.append(re.sub(r"\d+", "N", line))
        if "start of rollout" in line:
            seen.set()

    monkeypatch.setattr(starting, "say", say)
    starts = Starts()
    starts.together({"actor": lambda: time.sleep(0.5), "rollout": lambda: seen.wait(SECONDS)})
    starts.one_by_one({"ref": lambda: time.sleep(0.3)})
    names = [line.removeprefix("waiting for the start of ").removesuffix(" (N s)") for line in said]
    assert list(dict.fromkeys(names)) == ["actor, rollout", "rollout", "ref"]


class Engine:
    """A worker whose start goes on until it is told to end, or fails."""

    def __init__(self, error=None):
        self.over, self.error = threading.Event(), error
        if error:
            self.over.set()

    def is_starting(self):
        return not self.over.is_set()

    def started(self):
        assert self.over.wait(SECONDS)
        if self.error:
            raise self.error


def test_a_start_beside_the_others_begins_first_goes_on_during_theirs_and_is_waited_for_last():
    engine, order = Engine(), []

    def begin():
        order.append("rollout")
        return engine

    def build(name):
        assert engine.is_starting()
        order.append(name)
        if name == "ref":
            threading.Timer(0.2, engine.over.set).start()
        return name

    started = Starts().one_by_one(
        {name: lambda name=name: build(name) for name in ("actor", "ref")}, {"rollout": begin}
    )
    assert started == {"rollout": engine, "actor": "actor", "ref": "ref"}
    assert order == ["rollout", "actor", "ref"] and not engine.is_starting()


def test_a_start_beside_that_has_failed_is_raised_before_the_next_start_begins():
    engine, built = Engine(), []

    def build(name):
        built.append(name)
        engine.error = RunError("no kernel fits")
        engine.over.set()

    with pytest.raises(RunError, match="no kernel fits"):
        Starts().one_by_one({name: lambda name=name: build(name) for name in "ab"}, {"rollout": lambda: engine})
    assert built == ["a"]


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_failures_the_first_is_raised(is_first):
    engine = Engine(RunError("no kernel fits") if is_first else None)

    def wrong():
        raise ConfigError("model.path", "there is no model")

    with pytest.raises(RunError if is_first else ConfigError):
        Starts().one_by_one({"actor": wrong}, {"rollout": lambda: engine})


def test_the_terminal_shows_a_start_beside_until_it_ends(monkeypatch):
    monkeypatch.setattr(starting, "SILENCE", 0.2)
    monkeypatch.setattr(starting, "MINUTE", 0.0)
    engine, said = Engine(), []
    monkeypatch.setattr(starting, "say", lambda line: said.append(re.sub(r"\d+", "N", line)))
    threading.Timer(0.9, engine.over.set).start()
    Starts().one_by_one({"actor": lambda: time.sleep(0.5)}, {"rollout": lambda: engine})
    assert list(dict.fromkeys(said)) == [
        "waiting for the start of rollout, actor (N s)",
        "waiting for the start of rollout (N s)",
    ]
