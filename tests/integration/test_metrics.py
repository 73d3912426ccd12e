"""What whole runs write: names that are in the table, times that add up, trackers of every temper."""

import json
from statistics import median

import pytest

from corerl.plugins import Plugins
from corerl.telemetry.metrics_log import read_metrics
from scripts.metric_table import METRICS, find

PARTS = """
import json, time

def score(response, ground_truth, data_source, extra_info):
    if response.startswith("a"):
        raise ValueError("no a")
    return {"score": float(len(response) % 2), "short": float(len(response) < 3)}

class Recording:
    def __init__(self, run):
        self.file = (run.folder / "recorded.jsonl").open("a")
        names = run.project_name, run.experiment_name
        self.write("open", *names, run.config["rollout"]["n"], run.total_steps, run.resumed_from)

    def write(self, *values):
        print(json.dumps(values), file=self.file, flush=True)

    def log(self, metrics, step):
        self.write("log", step, len(metrics))

    def log_samples(self, step, columns, rows):
        self.write("samples", step, columns, rows)

    def close(self):
        self.write("close")

class Hanging(Recording):
    def write(self, *values):
        if values[0] == "log":
            time.sleep(60)

def refuses(run):
    raise ConnectionError("no network")
"""


@pytest.fixture
def train(train, workplace, material):
    """``train`` of the conftest, with evaluation, longer steps and a scorer that varies; returns the metrics too."""
    (workplace.folder / "more.py").write_text(PARTS)
    base = [
        f"reward.scorer={workplace.folder}/more.py:score",
        f"data.val_files=[{material}/data/test.parquet]",
        "data.max_response_length=16",
        "data.train_batch_size=16",
    ]

    def start(*overrides):
        outcome = train(*base, *overrides)
        assert outcome.code == 0, outcome.error
        [folder] = workplace.run_folders
        return outcome, folder, read_metrics(folder / "metrics.jsonl")

    return start


def unaccounted(records):
    """Of each step, the share of its time that is in no part of it."""
    shares = []
    for record in records:
        if step := record.get("timing_s/step"):
            parts = [
                value for name, value in record.items() if name.startswith("timing_s/") and name != "timing_s/step"
            ]
            shares.append(1 - sum(parts) / step)
    return shares


def test_every_name_is_in_the_table_and_the_parts_of_a_step_add_up_to_it(train):
    pytest.importorskip("corerl_ppo")
    pytest.importorskip("corerl_dapo")
    _, _, records = train(
        "algorithm.adv_estimator=gae",
        "algorithm.filter_groups={enable: true, max_num_gen_batches: 20}",
        "algorithm.use_kl_in_reward=true",
        "actor.use_kl_loss=true",
        "actor.kl_loss_coef=0.05",
        "actor.entropy_coeff=0.01",
        "rollout.n=4",
        "rollout.val_kwargs={n: 2, do_sample: true}",
        "trainer.total_training_steps=5",
        "trainer.test_freq=2",
    )
    registries = Plugins().registries
    known = [*METRICS]
    for registry in (registries.policy_losses, registries.value_losses):
        known += [metric for entry in registry for metric in entry.facts.metrics]
    names = {name for record in records for name in record} - {"step"}
    assert [name for name in sorted(names) if find(name, known) is None] == []
    assert {"critic/vf_clipfrac", "actor/pg_clipfrac_lower", "timing_s/testing"} <= names
    assert {record["actor/kl_coef"] for record in records[1:]} == {0.05}
    shares = unaccounted(records)
    assert len(shares) == 5
    assert 0 <= median(shares) < 0.01
    assert min(shares) >= 0


def test_the_times_of_batches_collected_ahead_are_no_part_of_the_step(train):
    _, _, records = train("trainer.total_training_steps=4", "trainer.max_staleness=1", "rollout.n=4")
    assert all("timing_s/wait" in record and "timing_s/gen" not in record for record in records[1:-1])
    assert all(record["timing_background_s/gen"] > 0 for record in records[1:])
    shares = unaccounted(records)
    assert 0 <= min(shares) < 0.01, "of the quietest step: the other thread may run between two parts of any"


def test_trackers_get_metrics_and_samples_and_none_of_them_stops_a_run(train, workplace):
    names = ", ".join(f"{workplace.folder}/more.py:{name}" for name in ("Recording", "Hanging", "refuses"))
    overrides = [f"tracking={{loggers: [{names}], timeout: 0.3}}", "trainer.log_val_generations=3"]
    outcome, folder, records = train(*overrides, "trainer.total_training_steps=2")
    assert [record["step"] for record in records] == [0, 1, 2]
    recorded = [json.loads(line) for line in (folder / "recorded.jsonl").read_text().splitlines()]
    assert recorded[0] == ["open", "corerl", "default", 2, 2, None]
    assert [row[:2] for row in recorded if row[0] == "log"] == [["log", 0], ["log", 1], ["log", 2]]
    assert recorded[-1] == ["close"]
    step, columns, rows = next(row[1:] for row in recorded if row[0] == "samples")
    assert (step, columns) == (0, ["data_source", "prompt", "response", "ground_truth", "score"])
    assert [row[0] for row in rows] == ["corerl/arithmetic"] * 3
    assert len({row[1] for row in rows}) == 3 and all("+" in row[1] for row in rows)
    assert outcome.stderr.count("refuses': ConnectionError: no network; the run goes on") == 1
    assert outcome.stderr.count("Hanging': ") == 1
