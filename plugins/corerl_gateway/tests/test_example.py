"""The example that walks on a grid, in a short form: a real training with the library openai over HTTP."""

import json
from pathlib import Path

import pytest

from corerl.cli.main import run

EXAMPLE = Path(__file__).parents[3] / "examples" / "agents-grid-walk"
SHAPE = ["--vocab-size=320", "--hidden-size=32", "--layers=1", "--heads=2", "--kv-heads=2", "--intermediate-size=64"]
SHORT = ["trainer.total_training_steps=2", "trainer.val_before_train=false", "trainer.test_freq=-1"]
SHORT += ["data.train_batch_size=2", "rollout.n=2", "actor.ppo_mini_batch_size=2"]


def test_the_grid_walk_trains(tmp_path, monkeypatch):
    for name in ("openai", "corerl_envs", "corerl_agents"):
        pytest.importorskip(name)
    monkeypatch.chdir(EXAMPLE.parents[1])
    data, model = tmp_path / "data", tmp_path / "model"
    sizes = ["--train-size=8", "--test-size=2", "--sft-size=200", "--good=0.3", "--moves=6"]
    assert run(["prepare", "grid-walk", f"--out={data}", *sizes]) == 0
    assert run(["tiny-model", f"--out={model}", f"--corpus={data}/sft.parquet", *SHAPE, "--max-positions=256"]) == 0
    files = [f"data.train_files=[{data}/train.parquet]", f"data.val_files=[{data}/test.parquet]"]
    given = [f"model.path={model}", *files, f"trainer.output_dir={tmp_path}/run", *SHORT]
    assert run(["train", str(EXAMPLE / "config.yaml"), *given]) == 0
    [log] = tmp_path.glob("run/**/metrics.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["agent/failed/ratio"] == 0.0 and last["agent/wrong_moves/mean"] > 0
    assert 1 < last["agent/turns/mean"] <= 6 and last["training/rollout_probs_diff_max"] < 1e-4
