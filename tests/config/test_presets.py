"""A preset lies beneath the file and the overrides."""

from pathlib import Path
from typing import Any

import pytest

from corerl.registry.presets import read_over_preset

PRESET = {
    "algorithm": {"adv_estimator": {"name": "gae", "lam": 0.95}},
    "actor": {"policy_loss": "vanilla", "clip_ratio_high": 0.28, "optim": {"lr": 1e-5}},
}


def read(text: str, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return read_over_preset(PRESET, file, overrides)


def test_what_neither_file_nor_override_says_is_the_presets(tmp_path: Path) -> None:
    values = read("actor: {optim: {eps: 1e-6}}", tmp_path, "actor.optim.lr=1e-3")
    assert values["actor"]["optim"] == {"lr": 1e-3, "eps": 1e-6}
    assert values["algorithm"] == PRESET["algorithm"]


@pytest.mark.parametrize("place", ["file", "override"])
def test_another_part_takes_no_option_from_the_preset(tmp_path: Path, place: str) -> None:
    text, overrides = {
        "file": ("{actor: {policy_loss: gspo}, algorithm: {adv_estimator: {name: rloo}}}", ()),
        "override": ("{}", ("actor.policy_loss=gspo", "algorithm.adv_estimator=rloo")),
    }[place]
    values = read(text, tmp_path, *overrides)
    assert values["actor"] == {"policy_loss": "gspo", "optim": {"lr": 1e-5}}
    assert values["algorithm"]["adv_estimator"] in ("rloo", {"name": "rloo"})


def test_another_part_keeps_the_options_that_it_is_given(tmp_path: Path) -> None:
    values = read("actor: {policy_loss: gspo, clip_ratio_high: 4e-4}", tmp_path)
    assert values["actor"]["clip_ratio_high"] == 4e-4


def test_an_option_of_the_presets_part_is_changed_alone(tmp_path: Path) -> None:
    values = read("{}", tmp_path, "algorithm.adv_estimator.gamma=0.99", "actor.clip_ratio_high=0.3")
    assert values["algorithm"]["adv_estimator"] == {"name": "gae", "lam": 0.95, "gamma": 0.99}
    assert values["actor"]["clip_ratio_high"] == 0.3
    assert PRESET["algorithm"]["adv_estimator"] == {"name": "gae", "lam": 0.95}
