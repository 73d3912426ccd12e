"""``corerl config``."""

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from corerl.cli.main import run
from corerl.config.load import load
from corerl.contracts.config import TrainConfig


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "c.yaml"
    file.write_text("model: {path: 'tiny #1'}\ndata: {train_files: [a.parquet], train_batch_size: 128}\n")
    return str(file)


def test_show_prints_every_key_and_reads_back_the_same(
    capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path
) -> None:
    overrides = ["actor.optim.lr=3e-6", "actor.policy_loss={name: mine, width: 2}", "rollout.n=4", "ref.path='null'"]
    assert run(["config", "show", config, *overrides]) == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(capsys.readouterr().out)
    assert load(TrainConfig, shown) == load(TrainConfig, Path(config), overrides)
    assert OmegaConf.to_container(OmegaConf.load(shown)) == dataclasses.asdict(load(TrainConfig, shown))


def test_show_puts_help_choices_and_ranges_behind_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show"]) == 0
    lines = {line.split(":")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert lines["train_batch_size"].split("#")[1].strip() == "prompts in a step; >= 1, <= 10000000"
    assert lines["truncation"].endswith("; error|left|right|middle")
    assert lines["path"].strip() != ""
    assert lines["actor"].endswith("# The policy's update.")


def test_show_without_a_file_marks_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "actor.grad_clip=0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  path: ???")
    assert "# required; " in lines[1]
    assert any(line.startswith("  grad_clip: 0.5 ") for line in lines)


def test_show_refuses_wrong_keys_and_values(capsys: pytest.CaptureFixture[str], config: str) -> None:
    assert run(["config", "show", config, "data.lr=1"]) == 2
    assert capsys.readouterr().err == "error: data.lr: unknown key; did you mean actor.optim.lr or critic.optim.lr?\n"
    assert run(["config", "show", config, "rollout.n=0"]) == 2
    assert capsys.readouterr().err == "error: rollout.n: must be at least 1, not 0\n"
