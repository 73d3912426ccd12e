"""The examples in a short form: real trainings through the endpoint, one program an episode."""

import json
from pathlib import Path

import pytest
from test_isolation import needs_bubblewrap

from corerl.cli.main import run

EXAMPLES = Path(__file__).parents[3] / "examples"
EXAMPLE = EXAMPLES / "agents-harness"


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A tiny model and its data; the example's paths are relative to the repository's root."""
    pytest.importorskip("corerl_gateway", reason="pip install corerl-gateway")
    pytest.importorskip("corerl_agents", reason="pip install corerl-agents")
    monkeypatch.chdir(EXAMPLE.parents[1])
    data, model = tmp_path / "data", tmp_path / "model"
    sizes = ["--train-size", "8", "--test-size", "2", "--sft-size", "64"]
    assert run(["prepare", "arithmetic", "--out", str(data), "--operations", "+", *sizes]) == 0
    shape = ["--vocab-size", "320", "--hidden-size", "32", "--layers", "1", "--heads", "2", "--kv-heads", "2"]
    corpus = str(data / "sft.parquet")
    shape += ["--intermediate-size", "64", "--max-positions", "256"]
    assert run(["tiny-model", "--out", str(model), "--corpus", corpus, *shape]) == 0
    return [
        f"model.path={model}",
        f"data.train_files=[{data}/train.parquet]",
        f"trainer.output_dir={tmp_path}/run",
    ]


def test_the_example_trains(parts, tmp_path):
    short = ["trainer.total_training_steps=2", "data.train_batch_size=2", "rollout.n=2", "actor.ppo_mini_batch_size=2"]
    assert run(["train", str(EXAMPLE / "config.yaml"), *parts, *short]) == 0
    [log] = tmp_path.glob("run/**/metrics.jsonl")
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    last = steps[-1].get("metrics", steps[-1])
    assert last["agent/failed/ratio"] == 0.0 and last["agent/turns/mean"] == 2.0
    assert last["harness/exit_code/ratio"] == 0.0 and last["harness/seconds/mean"] > 0


@needs_bubblewrap
def test_the_example_with_harbor_s_tasks_trains(parts, tmp_path):
    example = EXAMPLES / "agents-harbor"
    assert run(["prepare", "harbor", "--path", str(example / "tasks"), "--out", str(tmp_path / "tasks")]) == 0
    short = ["trainer.total_training_steps=1", "rollout.n=2", f"data.train_files=[{tmp_path}/tasks/train.parquet]"]
    assert run(["train", str(example / "config.yaml"), *parts, *short]) == 0
    [log] = tmp_path.glob("run/**/metrics.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["agent/failed/ratio"] == 0.0 and last["agent/turns/mean"] == 1.0


def test_one_command_of_five_solves_each_task_of_the_cold_start():
    from runpy import run_path

    example = EXAMPLES / "agents-harbor"
    commands = run_path(str(example / "data.py"))["COMMANDS"]
    assert sorted(commands) == sorted(each.name for each in (example / "tasks").iterdir())
    assert {len(each) for each in commands.values()} == {5}
