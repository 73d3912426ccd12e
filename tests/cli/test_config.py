"""``corerl config``."""

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from corerl.cli.main import run
from corerl.config.load import load
from corerl.config.schema import TrainConfig

PARTS = """
from corerl import hookimpl

def hook(name, entry):
    def register_it(register):
        register(entry, "nowhere:at_all", override=True)
    register_it.__name__ = name
    return hookimpl(register_it)

register_advantage_estimators = hook("register_advantage_estimators", "grpo")
register_policy_losses = hook("register_policy_losses", "vanilla")
register_training_strategies = hook("register_training_strategies", "torch")
register_rollout_backends = hook("register_rollout_backends", "hf")
register_reward_managers = hook("register_reward_managers", "parallel")
"""


@pytest.fixture
def parts(tmp_path: Path) -> list[str]:
    """Arguments that load a plugin which registers what the defaults name."""
    file = tmp_path / "parts.py"
    file.write_text(PARTS)
    return ["--plugin", str(file)]


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
    assert lines["train_batch_size"].split("#")[1].strip() == "prompts in a step; >= 1"
    assert lines["truncation"].endswith("; error|left|right|middle")
    assert lines["path"].strip() != ""
    assert lines["actor"].endswith("# The policy's update.")


def test_show_without_a_file_marks_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "actor.grad_clip=0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  path: ???")
    assert "# required; " in lines[1]
    assert any(line.startswith("  grad_clip: 0.5 ") for line in lines)


def test_show_refuses_what_check_refuses(capsys: pytest.CaptureFixture[str], config: str) -> None:
    assert run(["config", "show", config, "data.lr=1"]) == 2
    assert capsys.readouterr().err == "error: data.lr: unknown key; did you mean actor.optim.lr or critic.optim.lr?\n"
    assert run(["config", "show", config, "rollout.n=0"]) == 2
    assert capsys.readouterr().err == "error: rollout.n: must be at least 1, not 0\n"


def test_check_says_ok(capsys: pytest.CaptureFixture[str], config: str, parts: list[str]) -> None:
    assert run(["config", "check", config, *parts]) == 0
    assert capsys.readouterr().out == f"{config}: ok\n"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train_batch_size=96", "error: data.train_batch_size: 96 prompts do not divide into mini-batches of "),
        (
            "actor.policy_loss=vanila",
            "error: actor.policy_loss: unknown policy loss 'vanila' (did you mean 'vanilla'?)",
        ),
        (
            "tracking.loggers=[abacus]",
            "error: tracking.loggers[0]: unknown tracker 'abacus': it comes with corerl-abacus",
        ),
        ("rollout.n=many", "error: rollout.n: must be an integer, not 'many'"),
        ("rollout", "error: 'rollout' is not an override; one is written key=value"),
    ],
)
def test_check_prints_the_error_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], config: str, parts: list[str], abacus: None, override: str, message: str
) -> None:
    assert run(["config", "check", config, override, *parts]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_plugins_of_the_command_line_join_those_of_the_config(
    capsys: pytest.CaptureFixture[str], config: str, parts: list[str], tmp_path: Path
) -> None:
    more = tmp_path / "more.py"
    more.write_text(
        "from corerl import hookimpl\n@hookimpl\ndef register_trackers(register):\n    register('csv', 'nowhere:csv')\n"
    )
    overrides = [f"plugins.load=[{more}]", "tracking.loggers=[console, csv]"]
    assert run(["config", "check", config, *overrides, *parts]) == 0
    capsys.readouterr()
    assert run(["config", "check", config, "tracking.loggers=[csv]", *parts]) == 2
    assert "unknown tracker 'csv'" in capsys.readouterr().err


def test_check_refuses_a_broken_plugin_file(capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    assert run(["config", "check", config, "--plugin", str(broken)]) == 2
    assert capsys.readouterr().err.startswith(f"error: plugin {broken} is broken: ZeroDivisionError: division by zero")
