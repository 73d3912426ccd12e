"""Runs whose workers are lost, and that start them again."""

import json
import os
import signal

import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_tools.status import read_status
from corerl_torch import restarts

LOSING = """
import json
import os
import signal
from pathlib import Path

from corerl import hookimpl
from corerl.errors import ConfigError, WorkerDiedError, WorkerLateError
from corerl.contracts.policy_losses import LossOutput
from corerl.rollout.worker import RolloutWorker

coming = Path(__file__).with_suffix(".json")
"what happens at the n-th update of the file's life: lost, late, bug; or, by 'start n', at a start of the workers"


def happens(place):
    left = json.loads(coming.read_text())
    left[place] = left.get(place, 0) + 1
    coming.write_text(json.dumps(left))
    what = left.get(f"{place} {left[place]}")
    if what == "lost":
        raise WorkerDiedError(f"the actor worker died: {place} {left[place]}")
    if what == "late":
        raise WorkerLateError(f"no answer from the actor worker: {place} {left[place]}")
    if what == "few":
        raise ConfigError("runtime.n_gpus_per_node", "8 workers take 8 GPUs, and the cluster has none")
    if what == "bug":
        raise ValueError(f"a bug of the user: {place} {left[place]}")


def loss(inputs):
    happens("update")
    return LossOutput(-inputs.advantages * inputs.log_probs)


init = RolloutWorker.__init__


def start(self, *arguments):
    happens("start")
    init(self, *arguments)


RolloutWorker.__init__ = start


class Tracker:
    def __init__(self, run):
        self.run_id = run.run_id or "first"
        self.file = run.folder / "tracked.jsonl"
        self.tell(opened=self.run_id, resumed_from=run.resumed_from)

    def log(self, metrics, step):
        self.tell(step=step)

    def tell(self, **what):
        with self.file.open("a") as file:
            file.write(json.dumps(what) + chr(10))

    def close(self):
        pass


@hookimpl
def register_trackers(register):
    register("lines", Tracker)


@hookimpl
def run_started(run):
    print("hook: started")


@hookimpl
def run_ended(run, error):
    print("hook: ended", type(error).__name__)
"""


@pytest.fixture
def lose(workplace, monkeypatch, capsys):
    """``lose({"update 3": "lost", …}, overrides)``: what happens at the third update of a run of 4 steps, 2 each.

    Returns the exit code, what was printed and the newest run's folder.
    """
    monkeypatch.setattr(restarts, "BACKOFF", 0.0)
    file = workplace.folder / "losing.py"
    file.write_text(LOSING)
    from corerl.rollout.worker import RolloutWorker

    monkeypatch.setattr(RolloutWorker, "__init__", RolloutWorker.__init__)  # as it was, after the test

    def start(happens, *arguments):
        file.with_suffix(".json").write_text(json.dumps(happens))
        overrides = {
            "actor.policy_loss": f"{file}:loss",
            "reward.manager": "naive",
            "reward.scorer": f"{workplace.folder}/parts.py:length",
            "trainer.total_training_steps": 4,
            "trainer.log_rollouts_freq": 1,
            "trainer.async_save": "false",
            "trainer.resume_mode": "disable",
        }
        keys = [f"{key}={value}" for key, value in overrides.items()]
        code = run(["train", str(workplace.config), "--plugin", str(file), *keys, *arguments])
        return code, capsys.readouterr().err, max(workplace.run_folders, default=None)

    return start


def numbers(folder):
    changing = ("timing", "perf/", "training/restarts")
    return [
        {name: value for name, value in record.items() if not name.startswith(changing)}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def restarted(said, source, count):
    return f"{said}\nthe workers are started again from {source} in 0 s ({count} of trainer.max_restarts = 3)\n"


def test_lost_workers_are_started_again_from_the_last_checkpoint_and_nothing_is_doubled(lose, mortal, workplace):
    *_, straight = lose({})
    for saves in (True, False):
        freq = [f"trainer.save_freq={1 if saves else -1}", "tracking.loggers=[lines]"]
        code, said, folder = lose({"update 6": "lost", "start 2": "late"}, *freq)
        assert code == 0 and folder != straight
        assert numbers(folder) == numbers(straight)
        counts = [record["training/restarts"] for record in read_metrics(folder / "metrics.jsonl")]
        assert counts == ([0, 0, 2, 2] if saves else [2, 2, 2, 2])
        assert len(list((folder / "rollouts").iterdir())) == 4
        source = folder / "checkpoints" / "global_step_2" if saves else "the start (there is no checkpoint)"
        assert restarted("step 3: the actor worker died: update 6", source, 1) in said
        assert restarted("no answer from the actor worker: start 2", source, 2) in said
        status = read_status(folder)
        assert (status.state, status.restarts, status.error) == ("finished", 2, None)
        told = [json.loads(line) for line in (folder / "tracked.jsonl").read_text().splitlines()]
        assert [line for line in told if "opened" in line] == [
            {"opened": "first", "resumed_from": None},
            {"opened": "first", "resumed_from": 2 if saves else -1},
        ]
    engine = mortal(workplace.folder, {"generate": 3})  # it ends beyond its restarts, and the step before is saved
    code, said, folder = lose({}, "--plugin", str(engine), "rollout.name=mortal", "rollout.max_restarts=0")
    assert code == 0 and numbers(folder) == numbers(straight)
    assert f"{folder}/checkpoints/global_step_2 in 0 s (1 of" in said


def test_a_step_that_fails_twice_ends_the_run_and_both_errors_are_named(lose):
    losses = {"update 5": "lost", "start 2": "late", "update 7": "late"}
    code, said, folder = lose(losses, "trainer.save_freq=1")
    assert code == 1
    assert said.endswith(
        "error: step 3 has failed twice without progress: first: step 3: the actor worker died: update 5; after the "
        "restart: step 3: no answer from the actor worker: update 7\n"
    )
    assert (folder / "checkpoints" / "latest").read_text() == "global_step_2"
    status = read_status(folder)
    assert (status.state, status.restarts) == ("failed", 2)


def test_after_so_many_restarts_the_run_ends_with_a_code_of_its_own(lose):
    losses = {"update 3": "lost", "update 6": "lost"}
    code, said, _ = lose(losses, "trainer.save_freq=1", "trainer.max_restarts=1")
    assert code == 75
    assert "error: trainer.max_restarts = 1 allows no further restart: step 3: the actor worker died" in said
    code, said, _ = lose({"update 1": "lost", "start 2": "few"})
    assert code == 75
    assert "step 1: the actor worker died: update 1; its workers cannot be started again: runtime.n_gpus_per" in said
    code, said, _ = lose({"update 1": "lost"}, "trainer.max_restarts=0")
    assert code == 75 and said.endswith("error: step 1: the actor worker died: update 1\n")


@pytest.mark.parametrize(
    ("steady", "saves", "said_last"),
    [
        (0.0, 1, None),
        (3600.0, 1, "error: trainer.max_restarts = 1 allows no further restart"),
        (0.0, -1, "error: trainer.max_restarts = 1 allows no further restart"),
    ],
    ids=["work", "too-soon", "no-checkpoint"],
)
def test_restarts_before_long_work_with_a_later_checkpoint_count_no_more(lose, monkeypatch, steady, saves, said_last):
    monkeypatch.setattr(restarts, "STEADY", steady)
    monkeypatch.setattr(restarts, "BACKOFF", 0.01)
    second, third = (6, 9) if saves == 1 else (8, 99)  # in the next step each
    losses = {"update 3": "lost", f"update {second}": "lost", f"update {third}": "lost"}
    code, said, folder = lose(losses, f"trainer.save_freq={saves}", "trainer.max_restarts=1")
    waits = [line for line in said.splitlines() if "the workers are started again" in line]
    assert all(line.endswith("in 0.01 s (1 of trainer.max_restarts = 1)") for line in waits)
    if said_last is None:
        assert code == 0 and len(waits) == read_status(folder).restarts == 3
        assert [record["training/restarts"] for record in read_metrics(folder / "metrics.jsonl")] == [0, 1, 2, 3]
    else:
        assert code == 75 and len(waits) == 1 and said_last in said


@pytest.mark.parametrize("place", ["start 1", "update 1", "a scorer"])
def test_an_error_of_the_users_is_never_restarted(lose, workplace, place):
    scorer = [f"reward.scorer={workplace.folder}/parts.py:always_raises"] if place == "a scorer" else []
    code, said, _ = lose({place: "bug"}, *scorer)
    assert code == 1 and "started again" not in said


def test_a_signal_before_a_restart_ends_the_run_at_once(lose, monkeypatch):
    def say(message):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(restarts, "BACKOFF", 3600.0)
    monkeypatch.setattr(restarts, "say", say)
    code, said, folder = lose({"update 1": "lost"})
    assert code == 143 and said.endswith("stopped: the same command goes on from the last checkpoint\n")
    assert read_status(folder).state == "stopped"
