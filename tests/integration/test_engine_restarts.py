"""Engines that end in the middle of a run."""

import json

import pytest

from corerl.telemetry.metrics_log import read_metrics

PLUGIN = """
import json
import subprocess
from pathlib import Path

from corerl import hookimpl
from corerl.errors import RunError
from corerl_hf.options import HfOptions

coming = Path(__file__).with_suffix(".json")  # operation -> how many calls are left to each death


def mortal(model, rollout, *, device, options):
    from corerl_hf.backend import HfBackend

    class Mortal(HfBackend):
        # hf, which lives as long as a process of its own does

        def __init__(self):
            super().__init__(model, rollout, device=device, options=options)
            self.process = subprocess.Popen(["sleep", "600"])

        def health(self):
            super().health()
            if self.process is not None and self.process.poll() is not None:
                raise RunError(f"the engine (process {self.process.pid}) ended")

        def count(self, operation):
            left = json.loads(coming.read_text())
            left[operation] = left.get(operation, 0) - 1
            coming.write_text(json.dumps(left))
            if left[operation] == 0:
                self.process.kill()
                self.process.wait()
                self.health()

        async def generate(self, requests):
            self.count("generate")
            return await super().generate(requests)

        def update_weights(self, weights, version, *, verify=False):
            self.count("update_weights")
            super().update_weights(weights, version, verify=verify)

        def close(self):
            process, self.process = self.process, None
            process.kill()
            process.wait()
            super().close()

    return Mortal()


@hookimpl
def register_rollout_backends(register):
    register("mortal", mortal, options=HfOptions, summary="ends when it is told to")
"""


@pytest.fixture
def run_with(workplace, train):
    """Train four steps with engines that end at a call of an operation; outcome, records and folder."""

    def start(deaths, *arguments):
        file = workplace.folder / "mortal.py"
        file.write_text(PLUGIN)
        file.with_suffix(".json").write_text(json.dumps(deaths))
        common = ("--plugin", str(file), "rollout.name=mortal", "trainer.total_training_steps=4")
        scorer = f"reward.scorer={workplace.folder}/parts.py:length"
        outcome = train(*common, scorer, *arguments)
        folder = max(workplace.run_folders)
        records = [
            {name: value for name, value in record.items() if not name.startswith(("timing", "perf/"))}
            for record in read_metrics(folder / "metrics.jsonl")
        ]
        return outcome, records, folder

    return start


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_engine_that_ends_is_started_again_and_its_requests_sent_again(run_with, staleness):
    ahead = f"trainer.max_staleness={staleness}"
    _, straight, _ = run_with({}, ahead)
    outcome, records, _ = run_with({"generate": 2, "update_weights": 5}, ahead)
    assert outcome.code == 0
    assert "it is started again (1 of rollout.max_restarts = 3)" in outcome.stderr
    assert records[-1].pop("rollout/restarts") == 2 and straight[-1].pop("rollout/restarts") == 0
    if not staleness:  # else how far generation is ahead, and so its weights, depend on time
        assert records[-1] == straight[-1]


@pytest.mark.parametrize(("death", "last"), [({"generate": 3}, 2), ({"update_weights": 4}, 3)])
def test_a_run_whose_engine_ends_too_often_stops_with_a_checkpoint(run_with, death, last):
    _, straight, _ = run_with({})
    outcome, records, folder = run_with(death, "rollout.max_restarts=0", "trainer.resume_mode=disable")
    assert outcome.code == 1
    assert outcome.error.startswith("error: step 3: rollout.max_restarts = 0 allows no further start: the engine (")
    assert [record["step"] for record in records] == list(range(1, last + 1))
    assert (folder / "checkpoints" / "latest").read_text() == f"global_step_{last}"
    outcome, records, resumed = run_with({})
    assert (outcome.code, resumed) == (0, folder)
    assert records == straight
