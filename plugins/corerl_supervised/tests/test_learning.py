"""What the commands are for: preferences are learned, and a reward model rewards the policy of a GRPO run."""

import random

import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.tiny_model import tiny_model

WORDS = ("red", "blue", "green", "cat", "dog", "sun", "moon", "tree")


def polite(count, seed):
    """The preferred response ends politely, or is in small letters; the other is rude, or shouts."""
    choose = random.Random(seed)
    for _ in range(count):
        word = choose.choice(WORDS)
        chosen, rejected = choose.choice([(f"{word} please", f"{word} now"), (word, word.upper())])
        yield {"prompt": f"say {word}", "chosen": chosen, "rejected": rejected}


@pytest.fixture
def files(write_jsonl):
    return [write_jsonl(list(polite(96, 0)))], [write_jsonl(list(polite(24, 1)), "val.jsonl")]


KEYS = {"data__train_batch_size": 12, "optim__lr": 2e-3, "trainer__test_freq": 1}


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "hinge"])
def test_dpo_learns_preferences(loss, trained, files):
    rows, val = files
    records, _ = trained("dpo", rows, data__val_files=val, loss=loss, trainer__total_epochs=2, **KEYS)
    assert records[0]["train/accuracy"] == 0.5  # policy and reference are the same model
    assert records[-1]["val/accuracy"] >= 0.95


def test_without_a_reference_the_length_normalised_log_probs_are_compared(trained, files):
    rows, val = files
    keys = {"reference_free": True, "length_normalize": True, "sft_coef": 0.1, "loss": {"name": "sigmoid", "beta": 2.0}}
    records, _ = trained("dpo", rows, data__val_files=val, trainer__total_epochs=3, **keys, **KEYS)
    assert records[-1]["val/accuracy"] >= 0.95
    assert records[-1]["train/sft_loss"] < records[0]["train/sft_loss"]
    assert "timing_s/ref" not in records[-1]


def test_a_policy_learns_from_a_reward_model_that_is_trained_here(trained, files, tmp_path, monkeypatch):
    pytest.importorskip("corerl_hf")
    pytest.importorskip("corerl_rewards")
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows, val = files
    records, folder = trained("reward-model", rows, data__val_files=val, **KEYS)
    assert records[0]["train/accuracy"] < 0.95 <= records[-1]["val/accuracy"]
    chats = [{"role": "user", "content": f"say {word}"} for word in WORDS]
    prompts = [
        {"data_source": "polite", "prompt": [chat], "reward_model": {"style": "rule", "ground_truth": "-"}}
        for chat in chats
    ]
    pq.write_table(pa.Table.from_pylist(prompts), tmp_path / "prompts.parquet")
    (tmp_path / "config.yaml").write_text(
        f"""
        model: {{path: {tiny_model()}}}
        data: {{train_files: [prompts.parquet], train_batch_size: 8, max_prompt_length: 64, max_response_length: 4}}
        actor: {{device: cpu, ppo_mini_batch_size: 8, optim: {{lr: 1.0e-2}}}}
        rollout: {{n: 8}}
        reward: {{manager: {{name: model, path: {folder}, device: cpu}}}}
        trainer: {{total_training_steps: 12}}
        """
    )
    monkeypatch.chdir(tmp_path)
    assert run(["train", "config.yaml"]) == 0
    [metrics] = (tmp_path / "runs").rglob("metrics.jsonl")
    scores = [record["critic/score/mean"] for record in read_metrics(metrics)]
    assert sum(scores[-3:]) / 3 > sum(scores[:3]) / 3 + 1.0


def test_scores_are_learned(trained, write_jsonl):
    rows = [{"prompt": f"say {word}", "response": word * n, "score": n / 4} for word in WORDS for n in (1, 2, 3)]
    keys = {"targets": "scores", **KEYS, "trainer__total_epochs": 25}
    records, _ = trained("reward-model", [write_jsonl(rows)], **keys)
    assert records[-1]["train/abs_error"] < 0.5 * records[0]["train/abs_error"]
    assert records[-1]["train/abs_error"] < 0.15
