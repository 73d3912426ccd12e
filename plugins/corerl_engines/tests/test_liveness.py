"""Engines that hang, and engines that only take their time: a made-up one with a core in a process of its own."""

import asyncio
import os
import re
import signal
import time
from contextlib import suppress

import pytest
from slow_engine import SECONDS, gone, request

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import RunError
from corerl.rollout.engines import Engines
from corerl.rollout.worker import RolloutWorker
from corerl_engines.backend import EngineBackend
from corerl_engines.liveness import Patience, Silence
from corerl_engines.options import EngineOptions
from corerl_testing.tiny_model import tiny_model


def error_of(process, future):
    with pytest.raises(RunError) as raised:
        process.checked(future.result(SECONDS)[0])
    assert gone(process.pid)
    process.close()
    return str(raised.value)


@pytest.mark.parametrize("who", ["core", "leader"])
def test_an_engine_that_is_stopped_while_it_generates_is_ended(acme, who):
    process = acme.start()
    future = process.submit("generate", requests=[request(1, 10_000)])[1]
    os.kill(acme.core if who == "core" else process.pid, signal.SIGSTOP)
    message = error_of(process, future)
    what = rf"the Acme engine \(process {process.pid}\) hangs: it did not answer a probe, which asks for one token,"
    how_long = r"for \S+ s, in which its processes did nothing \(rollout\.options\.probe_timeout\)"
    assert re.fullmatch(rf"{what} {how_long}; its log: {acme.logs}/acme-\S+\.log", message)


def test_an_engine_that_waits_for_ever_is_ended(acme):
    process = acme.start()
    assert "hangs: it did not answer a probe" in error_of(process, process.submit("generate", requests=[request(3)])[1])


def test_an_operation_that_an_engine_does_nothing_about_ends_it(acme):
    process = acme.start()
    assert "hangs: it did not answer sleep for" in error_of(process, process.submit("sleep")[1])


def test_an_operation_past_its_own_deadline_ends_the_engine(acme):
    process = acme.start(Patience())
    with pytest.raises(
        RunError, match=r"^sleep in the Acme engine \(rollout\.options\.timeout\) took longer than 0\.3"
    ):
        process.ask("sleep", 0.3)
    with pytest.raises(RunError, match="took longer than"):
        process.ask("health", SECONDS)
    assert gone(process.pid)
    process.close()


@pytest.mark.parametrize("prompt", [1, 2], ids=["tokens", "work"])
def test_an_engine_that_brings_forth_tokens_or_works_is_left_alone(acme, prompt):
    process = acme.start(Patience(0.2, 1.0, SECONDS))
    process.submit("generate", requests=[request(4)])  # goes on all the time
    tokens = {1: 25, 2: 1}[prompt]
    header, _ = process.submit("generate", requests=[request(prompt, tokens)])[1].result(SECONDS)
    assert header["samples"] == [[tokens, "length", [[0, 0]], []]]
    process.close()


def test_an_engine_that_hangs_beside_others_is_noticed_while_those_send_responses(acme):
    process = acme.start(Patience(probe_interval=0.5, probe_timeout=0.5, timeout=SECONDS), parts=2)
    hanging = process.submit("generate", requests=[request(6, 10_000)])[1]

    def responses(seconds):
        number, end = 0, time.monotonic() + seconds
        while not hanging.done() and time.monotonic() < end:
            with suppress(RunError):  # once it is ended
                process.checked(process.submit("generate", requests=[request(1)])[1].result(SECONDS)[0])
                number += 1
        return number

    responses(3)
    assert not hanging.done()  # all of them are well
    os.kill(acme.core, signal.SIGSTOP)
    assert responses(30) > 2 and hanging.done()
    assert "hangs: it did not answer a probe" in error_of(process, hanging)


def test_an_engine_that_works_without_a_token_has_the_deadline_of_operations(acme):
    process = acme.start(Patience(0.1, 0.4, 1.2))
    message = error_of(process, process.submit("generate", requests=[request(5)])[1])
    assert message.partition("; its log")[0].endswith("in which its processes were at work (rollout.options.timeout)")


def test_an_update_that_takes_its_time_between_two_buckets_is_left_alone(acme):
    process = acme.start()
    future = process.submit("generate", requests=[request(4)])[1]
    process.ask("begin_update", SECONDS)
    time.sleep(1.5)  # twice as long as an engine that generates would have
    process.ask("end_update", SECONDS, version=1)
    assert not future.done()
    process.close()


def test_requests_of_an_engine_that_hangs_are_given_to_the_next_one(acme, capsys):
    def start(model, rollout, *, device):
        deadlines = {"probe_interval": 0.2, "probe_timeout": 0.4, "timeout": SECONDS, "start_timeout": SECONDS}
        options = EngineOptions(**deadlines, log_folder=str(acme.logs))
        environment, settings = acme.arguments
        return EngineBackend(acme.kind, ((1, 0), (2, 0)), model, rollout, device, options, environment, settings)

    class Runtime:
        def send_weights(self, actor, rollout, version, *, verify):
            stopped.append(version)

    stopped = []
    worker = RolloutWorker.__new__(RolloutWorker)
    model = ModelConfig(path=str(tiny_model()), dtype="fp32")
    worker.timeout = float(SECONDS)
    worker._start = lambda: start(model, RolloutConfig(), device="cpu")
    worker.backend = worker._start()
    worker.started()
    first = worker.backend.pid
    os.kill(acme.core, signal.SIGSTOP)
    requests = [GenerationRequest(name, [0], SamplingParams(max_tokens=2)) for name in "ab"]
    finished = {}
    asyncio.run(Engines(Runtime(), None, worker, 3).generate(requests, finished.__setitem__))
    assert [list(finished[row][0].token_ids) for row in range(2)] == [[7, 7]] * 2
    assert worker.backend.pid != first
    assert stopped == [0]
    line = rf"the Acme engine \(process {first}\) hangs: .*; it is started again \(1 of rollout\.max_restarts = 3\)\n"
    assert re.fullmatch(line, capsys.readouterr().err)
    worker.close()


def test_what_the_leader_answers_alone_is_no_sign_of_life_of_its_core(acme):
    process = acme.start()
    future = process.submit("generate", requests=[request(3)])[1]
    end = time.monotonic() + SECONDS
    while not future.done() and time.monotonic() < end:
        with suppress(RunError):  # once it is ended
            process.ask("health", SECONDS)
        time.sleep(0.1)
    assert "hangs: it did not answer a probe" in error_of(process, future)


@pytest.mark.parametrize(
    ("state", "used", "idle"),
    [("S", 0.1, 4.0), ("S", 0.3, 0.0), ("SR", 0.0, 0.0), ("D", 0.0, 0.0), ("ST", 0.3, 4.0), ("Rt", 0.3, 4.0)],
)
def test_idle_is_who_takes_less_than_a_twentieth_of_a_core_or_was_stopped(monkeypatch, state, used, idle):
    monkeypatch.setattr("corerl_engines.liveness._processes", lambda group: [("S", 0.0), (state, used)])
    silence = Silence(1, 3.0)
    silence.look(4.0, at_processes=True)
    assert (silence.seconds, silence.idle) == (4.0, idle)
    silence.look(100.0, at_processes=False)  # this process was stopped
    assert (silence.seconds, silence.idle) == (10.0, idle)


def test_an_engine_started_without_options_has_their_patience():
    assert EngineOptions().patience == Patience()
