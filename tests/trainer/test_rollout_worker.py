"""What a rollout worker does with an engine that is stuck."""

import pytest

from corerl.config.schema import ModelConfig, PluginsConfig, RolloutConfig, TrainConfig
from corerl.errors import EngineDeadError
from corerl.registry.rollout_backends import GenerationRequest, SamplingParams
from corerl.trainer import rollout_worker
from corerl.trainer.rollout_worker import RolloutWorker

PLUGIN = """
import asyncio

from corerl import hookimpl
from corerl.errors import DeadlineError, RunError

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

    def last_lines(self):
        return "the last lines of its log (/there.log): stuck"

@hookimpl
def register_rollout_backends(register):
    register("stuck", lambda model, rollout, *, device: Stuck())
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "stuck.py").write_text(PLUGIN)
    monkeypatch.setattr(rollout_worker, "ABORT_SECONDS", 0.05)
    config = TrainConfig(ModelConfig("x"), rollout=RolloutConfig(name="stuck", timeout=0.05))
    config.plugins = PluginsConfig(load=[str(tmp_path / "stuck.py")])
    return RolloutWorker(config)


def test_the_error_of_a_stuck_engine_names_what_was_waited_for_its_key_and_the_log(worker):
    with pytest.raises(EngineDeadError) as error:
        list(worker.generate([GenerationRequest("a", [1], SamplingParams(max_tokens=4))]))
    assert str(error.value) == (
        "generating 1 prompts took longer than rollout.timeout = 0.05 s; the last lines of its log (/there.log): "
        "stuck; health took longer than 1 s"
    )


def test_weights_are_read_to_their_end_where_the_engine_ends_among_them(worker):
    """Who sends them waits until they are read; other rollout workers get the same ones."""
    weights = iter([("a", None), ("b", None), ("c", None)])
    with pytest.raises(EngineDeadError, match="the bucket was not loaded; health took longer than 1 s"):
        worker.update_weights(weights, 1)
    assert list(weights) == []
