"""A preset lies beneath the file and the overrides."""

from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl_check.aliases import read_over_preset

PRESET = {
    "algorithm": {"adv_estimator": {"name": "gae", "lam": 0.95}},
    "actor": {"policy_loss": {"name": "vanilla", "clip_ratio_high": 0.28}, "optim": {"lr": 1e-5}},
}
ALIASES = {"actor.clip_low": "actor.policy_loss.clip_ratio_low", "actor.clip_high": "actor.policy_loss.clip_ratio_high"}


def read(text: str, tmp_path: Path, *overrides: str, preset: dict[str, Any] = PRESET) -> dict[str, Any]:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return read_over_preset(TrainConfig, preset, file, overrides, ALIASES)


def test_what_neither_file_nor_override_says_is_the_presets(tmp_path: Path) -> None:
    values = read("actor: {optim: {eps: 1e-6}}", tmp_path, "actor.optim.lr=1e-3")
    assert values["actor"]["optim"] == {"lr": 1e-3, "eps": 1e-6}
    assert values["algorithm"] == PRESET["algorithm"]


@pytest.mark.parametrize("place", ["file", "override", "override of the name"])
def test_another_part_takes_no_option_from_the_preset(tmp_path: Path, place: str) -> None:
    text, overrides = {
        "file": ("{actor: {policy_loss: gspo}, algorithm: {adv_estimator: {name: rloo}}}", ()),
        "override": ("{}", ("actor.policy_loss=gspo", "algorithm.adv_estimator=rloo")),
        "override of the name": ("{}", ("actor.policy_loss.name=gspo", "algorithm.adv_estimator.name=rloo")),
    }[place]
    values = read(text, tmp_path, *overrides)
    assert values["actor"]["policy_loss"] in ("gspo", {"name": "gspo"})
    assert values["actor"]["optim"] == {"lr": 1e-5}
    assert values["algorithm"]["adv_estimator"] in ("rloo", {"name": "rloo"})


@pytest.mark.parametrize(
    "text",
    [
        "actor: {policy_loss: {name: gspo, clip_ratio_high: 4e-4}}",
        "actor: {policy_loss: gspo, clip_high: 4e-4}",
    ],
)
def test_another_part_keeps_the_options_that_it_is_given(tmp_path: Path, text: str) -> None:
    assert read(text, tmp_path)["actor"]["policy_loss"] == {"name": "gspo", "clip_ratio_high": 4e-4}


@pytest.mark.parametrize("place", ["file", "override"])
def test_the_same_part_by_its_name_keeps_the_options_of_the_preset(tmp_path: Path, place: str) -> None:
    written: dict[str, tuple[str, list[str]]] = {
        "file": ("actor: {policy_loss: vanilla}", []),
        "override": ("{}", ["actor.policy_loss=vanilla"]),
    }
    text, overrides = written[place]
    assert read(text, tmp_path, *overrides)["actor"]["policy_loss"] == PRESET["actor"]["policy_loss"]


def test_a_mapping_in_an_override_replaces_that_of_the_preset(tmp_path: Path) -> None:
    values = read("{}", tmp_path, "actor.policy_loss={name: vanilla, clip_ratio_low: 0.1}")
    assert values["actor"]["policy_loss"] == {"name": "vanilla", "clip_ratio_low": 0.1}


@pytest.mark.parametrize(
    ("text", "override"),
    [
        ("{}", "actor.policy_loss.clip_ratio_high=0.3"),
        ("{}", "actor.clip_high=0.3"),
        ("actor: {clip_high: 0.3}", "rollout.n=2"),
        ("actor: {policy_loss: {clip_ratio_high: 0.3}}", "rollout.n=2"),
        ("actor: {policy_loss: vanilla}", "actor.policy_loss.clip_ratio_high=0.3"),
    ],
)
def test_an_option_of_the_presets_part_is_changed_alone(tmp_path: Path, text: str, override: str) -> None:
    preset = {"actor": {"policy_loss": {"name": "vanilla", "clip_ratio_low": 0.1, "clip_ratio_high": 0.28}}}
    values = read(text, tmp_path, override, preset=preset)
    assert values["actor"] == {"policy_loss": {"name": "vanilla", "clip_ratio_low": 0.1, "clip_ratio_high": 0.3}}


def test_reading_changes_no_preset(tmp_path: Path) -> None:
    read("{}", tmp_path, "algorithm.adv_estimator.gamma=0.99", "actor.policy_loss.clip_ratio_high=0.3")
    assert PRESET["algorithm"]["adv_estimator"] == {"name": "gae", "lam": 0.95}
    assert PRESET["actor"]["policy_loss"] == {"name": "vanilla", "clip_ratio_high": 0.28}


def test_an_option_for_a_plain_name_or_the_default_makes_a_mapping(tmp_path: Path) -> None:
    plain = read("{}", tmp_path, "actor.policy_loss.clip_ratio_low=0.1", preset={"actor": {"policy_loss": "gspo"}})
    assert plain["actor"]["policy_loss"] == {"name": "gspo", "clip_ratio_low": 0.1}
    default = read("{}", tmp_path, "actor.policy_loss.clip_ratio_low=0.1", preset={})
    assert default["actor"]["policy_loss"] == {"name": "vanilla", "clip_ratio_low": 0.1}


def test_a_preset_may_have_aliases(tmp_path: Path) -> None:
    preset = {"actor": {"clip_low": 0.1, "clip_high": 0.28}}
    values = read("actor: {clip_high: 0.3}", tmp_path, preset=preset)
    assert values["actor"] == {"policy_loss": {"name": "vanilla", "clip_ratio_low": 0.1, "clip_ratio_high": 0.3}}


def test_an_alias_that_is_null_sets_the_option_back(tmp_path: Path) -> None:
    assert read("actor: {clip_high: null}", tmp_path)["actor"]["policy_loss"] == {"name": "vanilla"}


def test_an_alias_and_its_key_are_compared_within_file_and_overrides_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^actor.clip_high: is 0.3, but actor.policy_loss.clip_ratio_high is 0.4: "):
        read("actor: {clip_high: 0.3}", tmp_path, "actor.policy_loss.clip_ratio_high=0.4")
