"""What a rollout worker hands on as it comes, and what it does with an engine that is stuck."""

import asyncio

import pytest

from corerl.contracts.config import ModelConfig, PluginsConfig, RolloutConfig, TrainConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import DeadlineError, EngineDeadError
from corerl.rollout import worker as rollout_worker
from corerl.rollout.worker import RolloutWorker

PLUGIN = """
import asyncio

from corerl import hookimpl
from corerl.errors import ConfigError, DeadlineError, RunError

class Stuck:
    async def generate(self, requests):
        await asyncio.Event().wait()

    def update_weights(self, weights, version, *, verify=False):
        next(weights)
        raise RunError("the bucket was not loaded")

    def abort(self, request_ids):
        raise DeadlineError("abort took longer than 1 s")

    def health(self):
        raise DeadlineError("health took longer than 1 s")

    closed = 0

    def close(self):
        self.closed += 1

    def last_lines(self):
        return "the last lines of its log (/there.log): stuck"

async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)

class Paced:
    # finishes a request every 50 turns of the event loop, and is done 50 turns later

    async def generate(self, requests, on_finished):
        for position, request in enumerate(requests):
            await turns(50)
            on_finished(position, [request.request_id])
        await turns(50)
        return [[request.request_id] for request in requests]

    def close(self):
        pass

class Last:
    async def generate(self, requests):
        return [[request.request_id] for request in requests]

class Slow:
    # takes its turns to end once it is cancelled

    is_ended = False

    async def generate(self, requests):
        try:
            await asyncio.Event().wait()
        finally:
            await turns(50)
            self.is_ended = True

    def abort(self, request_ids):
        self.aborted = request_ids

    def health(self):
        pass

class Halting(Slow):
    # finishes the first request

    async def generate(self, requests, on_finished):
        on_finished(0, [requests[0].request_id])
        await asyncio.Event().wait()

def once(error):
    # starts once, and is dead then
    starts = []

    def start(model, rollout, *, device):
        starts.append(device)
        if len(starts) > 1:
            raise error
        return Stuck()

    return start

@hookimpl
def register_rollout_backends(register):
    register("last", lambda model, rollout, *, device: Last())
    register("halting", lambda model, rollout, *, device: Halting())
    register("once_RunError", once(RunError("no memory is left")))
    register("once_ConfigError", once(ConfigError("rollout.options.python", "there is no such program")))
    register("stuck", lambda model, rollout, *, device: Stuck())
    register("paced", lambda model, rollout, *, device: Paced())
    register("slow", lambda model, rollout, *, device: Slow())
"""

REQUESTS = [GenerationRequest(name, [1], SamplingParams(max_tokens=4)) for name in "ab"]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """``start(backend, timeout=0.05)``"""
    (tmp_path / "backends.py").write_text(PLUGIN)
    monkeypatch.setattr(rollout_worker, "ABORT_SECONDS", 0.05)

    def make(name, timeout=0.05):
        config = TrainConfig(ModelConfig("x"), rollout=RolloutConfig(name=name, timeout=timeout))
        config.plugins = PluginsConfig(load=[str(tmp_path / "backends.py")])
        return RolloutWorker(config)

    return make


@pytest.fixture
def worker(start):
    return start("stuck")


def generated(worker, requests=REQUESTS, told=None):
    """(position, completions) in the order in which they come."""
    told = [] if told is None else told
    asyncio.run(worker.generate(requests, lambda position, completions: told.append((position, completions))))
    return told


@pytest.mark.parametrize("backend", ["paced", "last"])
def test_each_request_is_handed_on_once_by_a_backend_that_tells_and_by_one_that_does_not(start, backend):
    assert generated(start(backend, timeout=600)) == [(0, ["a"]), (1, ["b"])]


def test_requests_that_are_late_are_aborted_cancelled_and_waited_for(start):
    worker = start("slow")
    with pytest.raises(DeadlineError, match=r"^2 of 2 prompts had no responses after rollout.timeout = 0\.05 s$"):
        generated(worker)
    assert (worker.backend.aborted, worker.backend.is_ended) == (["a", "b"], True)


def test_the_error_of_a_stuck_engine_names_what_was_waited_for_its_key_and_the_log(worker):
    with pytest.raises(EngineDeadError) as error:
        generated(worker, REQUESTS[:1])
    assert str(error.value) == (
        "1 of 1 prompts had no responses after rollout.timeout = 0.05 s; the last lines of its log (/there.log): "
        "stuck; health took longer than 1 s"
    )


def test_an_engine_that_generates_in_time_but_for_one_request_is_late_with_that_one(start):
    late = start("halting", timeout=0.5)
    finished = []
    with pytest.raises(DeadlineError, match=r"^1 of 2 prompts had no responses after rollout.timeout = 0\.5 s$"):
        generated(late, told=finished)
    assert finished == [(0, ["a"])]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("once_RunError", "no memory is left"),
        ("once_ConfigError", "rollout.options.python: there is no such program"),
    ],
)
def test_an_engine_that_does_not_start_again_is_dead(start, name, said):
    worker = start(name)
    with pytest.raises(EngineDeadError) as raised:
        worker.restart()
    assert str(raised.value) == f"the engine could not be started again: {said}"
    assert raised.value.exit_code == 75
    worker.close()
    assert worker.backend.closed == 1


def test_weights_are_read_to_their_end_where_the_engine_ends_among_them(worker):
    """Who sends them waits until they are read; other rollout workers get the same ones."""
    weights = iter([("a", None), ("b", None), ("c", None)])
    with pytest.raises(EngineDeadError, match="the bucket was not loaded; health took longer than 1 s"):
        worker.update_weights(weights, 1)
    assert list(weights) == []


@pytest.mark.parametrize(("most", "is_noticed"), [(100, False), (99, True), (None, False)])
def test_an_engine_for_shorter_sequences_than_the_runs_is_noticed(tmp_path, capsys, most, is_noticed):
    (tmp_path / "bounded.py").write_text(BOUNDED)
    config = TrainConfig(ModelConfig(path="model"), rollout=RolloutConfig(name="bounded"))
    config.plugins = PluginsConfig(load=[str(tmp_path / "bounded.py")])
    config.actor.device, config.data.max_prompt_length, config.data.max_response_length = "cpu", 60, 40
    worker = RolloutWorker(config)
    worker.backend.most = most
    worker.started()
    notice = "at most 99 tokens, by its memory or its model, and a row may have 100 (data.max_prompt_length + "
    assert (notice in " ".join(capsys.readouterr().err.split())) is is_noticed


BOUNDED = """
from corerl import hookimpl

class Engine:
    most = 1000

    def longest_sequence(self):
        return self.most

    def __init__(self, model, rollout, *, device):
        pass

@hookimpl
def register_rollout_backends(register):
    register("bounded", Engine)
"""
