"""Engines that end in the middle of a run."""

import pytest

from corerl.telemetry.metrics_log import read_metrics
from corerl_torch import restarts


@pytest.fixture
def run_with(workplace, train, mortal):
    """Train four steps with engines that end at a call of an operation; outcome, records and folder."""

    def start(deaths, *arguments):
        common = (
            "--plugin",
            str(mortal(workplace.folder, deaths)),
            "rollout.name=mortal",
            "trainer.total_training_steps=4",
        )
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
    ends = ["rollout.max_restarts=0", "trainer.max_restarts=0", "trainer.resume_mode=disable"]
    outcome, records, folder = run_with(death, *ends)
    assert outcome.code == 75
    assert outcome.error.startswith("error: step 3: rollout.max_restarts = 0 allows no further start: the engine (")
    assert [record["step"] for record in records] == list(range(1, last + 1))
    assert (folder / "checkpoints" / "latest").read_text() == f"global_step_{last}"
    outcome, records, resumed = run_with({})
    assert (outcome.code, resumed) == (0, folder)
    assert records == straight


def without_restarts(records):
    return [{name: value for name, value in record.items() if "restarts" not in name} for record in records]


def test_an_engine_that_does_not_start_again_costs_a_restart_of_all_workers_and_no_step(run_with, monkeypatch):
    monkeypatch.setattr(restarts, "BACKOFF", 0.0)
    _, straight, _ = run_with({})
    outcome, records, folder = run_with({"generate": 3, "start": 2}, "trainer.resume_mode=disable")
    said = "step 3: the engine could not be started again: no room for another engine"
    assert f"{said}\nthe workers are started again from {folder}/checkpoints/global_step_2 in 0 s" in outcome.stderr
    assert outcome.code == 0 and without_restarts(records) == without_restarts(straight)
    outcome, _, folder = run_with({"generate": 3, "start": 2}, "trainer.max_restarts=0", "trainer.resume_mode=disable")
    assert (outcome.code, outcome.error) == (75, f"error: {said}")
    assert (folder / "checkpoints" / "latest").read_text() == "global_step_2"


def test_requests_past_the_deadline_of_a_healthy_engine_are_sent_again(run_with, monkeypatch):
    monkeypatch.setattr("corerl.rollout.worker.ABORT_SECONDS", 0.5)
    _, straight, _ = run_with({})
    outcome, records, _ = run_with({"late": 3}, "rollout.timeout=2", "trainer.resume_mode=disable")
    assert outcome.code == 0 and without_restarts(records) == without_restarts(straight)
    assert "failed and is tried again: 8 of 8 prompts had no responses after rollout.timeout = 2 s" in outcome.stderr
    assert "started again" not in outcome.stderr
