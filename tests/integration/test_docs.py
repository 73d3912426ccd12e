"""The code of docs/plugins.md and of the README is run as it stands."""

import re
from pathlib import Path

import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics

pytest.importorskip("corerl_hf")
pytest.importorskip("corerl_fsdp")
pytest.importorskip("corerl_grpo")
pytest.importorskip("corerl_rewards")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The documents' Python files, in the current folder, with data and a model."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "plugins.md").read_text()
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, flags=re.DOTALL)
    assert [name for name, _ in blocks] == ["my_reward.py", "my_loss.py", "my_advantages.py", "my_plugin.py"]
    for name, code in blocks:
        Path(name).write_text(code)
    sizes = ["--max-operand=9", "--train-size=16", "--test-size=4", "--sft-size=0"]
    assert run(["prepare", "arithmetic", "--out=data", *sizes]) == 0
    shape = ["--vocab-size=300", "--hidden-size=16", "--layers=1"]
    assert run(["tiny-model", "--out=model", "--corpus=data/train.parquet", *shape]) == 0
    Path("config.yaml").write_text(
        """
        model: {path: model}
        data: {train_files: [data/train.parquet], train_batch_size: 4, max_prompt_length: 64, max_response_length: 4}
        actor: {device: cpu, ppo_mini_batch_size: 4}
        rollout: {n: 2}
        trainer: {total_training_steps: 1}
        """
    )
    return tmp_path


def metrics():
    [path] = Path("runs").rglob("metrics.jsonl")
    return read_metrics(path)[-1]


def test_a_reward_in_ten_lines(files):
    assert run(["train", "config.yaml", "reward.scorer=./my_reward.py:score"]) == 0
    assert metrics()["reward/length_ok/mean"] == 1.0


def test_a_policy_loss_with_options_and_an_estimator_by_file(files):
    assert (
        run(
            [
                *("train", "config.yaml", "actor.policy_loss=./my_loss.py:soft_clip", "actor.policy_loss.width=0.1"),
                "algorithm.adv_estimator=./my_advantages.py:batch_baseline",
            ]
        )
        == 0
    )
    assert "actor/pg_loss" in metrics()


def test_names_from_a_hook_file(files, capsys):
    plugin = ["--plugin", "./my_plugin.py"]
    for name in ("soft_clip", "batch_baseline", "last_word"):
        assert run(["plugins", "check", name, *plugin]) == 0
    selected = ["actor.policy_loss=soft_clip", "algorithm.adv_estimator=batch_baseline", "reward.scorer=last_word"]
    assert run(["train", "config.yaml", *plugin, *selected]) == 0
    assert "step 1: more than half of the responses were cut off" in capsys.readouterr().out
