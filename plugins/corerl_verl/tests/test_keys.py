"""Unknown keys of verl are answered by CoreRL's keys."""

from pathlib import Path

import pytest

from corerl.cli.main import run
from corerl_verl.keys import hint


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("trainer.logger", "verl's key is tracking.loggers in CoreRL: a list"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", "verl's key is actor.strategy.param_offload in CoreRL"),
        ("critic.model.path", "verl's key is critic.path in CoreRL"),
        (
            "actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
            "verl's key has no counterpart: actor.use_dynamic_bsz applies to all",
        ),
        (
            "actor_rollout_ref.rollout.temperature",
            "did you mean rollout.temperature? (`corerl config from-verl` translates all of verl's keys)",
        ),
        (
            "actor_rollout_ref.actor.clip_ratio_high",
            "verl's key is actor.policy_loss.clip_ratio_high in CoreRL: also accepted under verl's name",
        ),
        ("trainer.xyzzy", None),
    ],
)
def test_the_remedy_of_an_unknown_key(key: str, expected: str | None) -> None:
    assert hint(key) == expected


def test_a_key_of_nobody_below_verls_prefix_is_answered_by_the_sections_keys() -> None:
    assert (hint("actor_rollout_ref.ref.xyzzy") or "").startswith("the keys of ref are path, ")


@pytest.mark.parametrize("command", [["config", "show"], ["train"], ["check"]])
def test_commands_name_corerls_key(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: {path: ./no_such_folder}\ntrainer: {logger: [console]}\n")
    assert run([*command, str(file)]) == 2
    printed = capsys.readouterr()
    assert "trainer.logger: unknown key; verl's key is tracking.loggers in CoreRL: a list" in printed.out + printed.err


def test_without_the_distribution_the_nearest_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for override, message in (
        ("critic.models.path=x", "critic.models.path: unknown key; did you mean critic.path?"),
        ("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.n: unknown key; did you mean rollout.n"),
        ("algorithm.gamma=0.9", "algorithm.gamma: unknown key; "),
    ):
        assert run(["config", "show", "--disable-plugin", "corerl-verl", "model.path=m", override]) == 2
        error = capsys.readouterr().err
        assert message in error and "verl" not in error.replace("overlong", "")
