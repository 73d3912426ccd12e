"""Batches that are collected ahead of training, and memory that engine and training hand to each other."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics


@pytest.fixture
def train(material, tmp_path, monkeypatch):
    """Train six steps with overrides; returns the metrics of each step, those that measure time or memory aside."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{train_files: [{material}/data/train.parquet], val_files: [{material}/data/test.parquet],
               train_batch_size: 8, max_prompt_length: 64, max_response_length: 6}}
        actor: {{device: cpu, optim: {{lr: 1e-2}}, ppo_mini_batch_size: 4, use_kl_loss: true}}
        rollout: {{n: 4}}
        reward: {{scorer: ./reward.py:score, manager: naive}}
        trainer: {{total_training_steps: 6, test_freq: 2, output_dir: runs}}
        """
    )
    (tmp_path / "reward.py").write_text(
        "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"
    )

    def start(name, *overrides):
        assert run(["train", "config.yaml", f"tracking.experiment_name={name}", *overrides]) == 0
        [folder] = (tmp_path / "runs" / name).iterdir()
        return [
            {key: value for key, value in record.items() if not key.startswith(("timing", "perf/"))}
            for record in read_metrics(folder / "metrics.jsonl")
        ]

    return start


def of_steps(records, name):
    return [record[name] for record in records if record["step"] > 0]


def test_no_response_is_older_than_the_bound_and_stale_ones_are_weighted(train):
    lags = of_steps(train("one", "trainer.max_staleness=1"), "training/staleness/max")
    assert lags[0] == 0 and max(lags) == 1
    records = train("four", "trainer.max_staleness=4")
    assert 1 < max(of_steps(records, "training/staleness/max")) <= 4
    weights = of_steps(records, "rollout_corr/rollout_is_mean")
    assert weights[0] == pytest.approx(1, abs=1e-5) and abs(weights[-1] - 1) > 1e-4
    assert "rollout_corr/rejected_fraction" in records[-1]  # weights are on


def test_memory_that_changes_hands_changes_no_number(train):
    plain = train("plain")
    shared = train("shared", "rollout.free_cache_engine=true", "trainer.offload_while_generating=true")
    assert shared == plain


def swapped_digits(folder, path):
    """The model with a tokenizer that exchanges the ids of two digits."""
    shutil.copytree(folder, path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def test_a_stale_run_resumes_with_the_prompts_that_come_next_of_the_same_data_and_tokenizer(
    train, tmp_path, material, capsys
):
    full = train("full", "trainer.max_staleness=2", "trainer.save_freq=3")
    [folder] = (tmp_path / "runs" / "full").iterdir()
    state = json.loads((folder / "checkpoints" / "global_step_3" / "state.json").read_text())
    assert state["sampler"]["position"] == 3  # of the trained batches, not of those generated ahead
    assert run(["train", "config.yaml", "trainer.max_staleness=2", f"trainer.resume_mode={folder}"]) == 0
    assert len(full) == 7
    checkpoint = folder / "checkpoints" / "global_step_3"
    assert (checkpoint / "groups.parquet").is_file()
    table = pq.read_table(material / "data" / "train.parquet")
    pq.write_table(table.take(list(reversed(range(len(table))))), tmp_path / "others.parquet")
    for other in (
        f"data.train_files=[{tmp_path}/others.parquet]",
        f"model.path={swapped_digits(material / 'model', tmp_path / 'swapped')}",
    ):
        resumed = ["train", "config.yaml", "trainer.max_staleness=2", f"trainer.resume_mode={checkpoint}", other]
        assert run(resumed) == 2  # another config
        capsys.readouterr()
        assert run([*resumed, "trainer.resume_with_changes=true"]) == 0  # the groups are of other prompts
        assert "its finished groups, of before the changes, are generated again" in capsys.readouterr().err
