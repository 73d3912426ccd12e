"""An alias and its key give a part the same options; a config from before the aliases is read."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from corerl.checkpoint.resume import Checkpoint
from corerl.cli.common import load_train_config
from corerl.cli.main import run
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.plugins import load_plugins
from corerl_tools.resumed import check_same, saved_config
from corerl_verl.keys import ALIASES

for _distribution in ("corerl_dapo", "corerl_fsdp", "corerl_grpo", "corerl_hf", "corerl_ppo", "corerl_rewards"):
    pytest.importorskip(_distribution)

ROOT = Path(__file__).parents[3]
BASE = ["model.path=m", "data.train_files=[t.parquet]"]
CASES: dict[str, tuple[Any, list[str]]] = {
    "algorithm.gamma": (0.9, ["algorithm.adv_estimator=gae"]),
    "algorithm.lam": (0.8, ["algorithm.adv_estimator=gae"]),
    "algorithm.norm_adv_by_std_in_grpo": (False, []),
    "algorithm.kl_ctrl.target_kl": (0.3, ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"]),
    "algorithm.kl_ctrl.horizon": (77, ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"]),
    "algorithm.filter_groups.metric": ("accuracy", ["algorithm.filter_groups.enable=true"]),
    "actor.clip_ratio_low": (0.1, []),
    "actor.clip_ratio_high": (0.3, []),
    "actor.clip_ratio_c": (2.5, []),
    "critic.cliprange_value": (0.7, ["algorithm.adv_estimator=gae"]),
    "reward.memory_limit_gb": (1.5, []),
}


def options(*overrides: str, file: Path | None = None) -> dict[str, Any]:
    """Key -> options of every selected part."""
    _, parts, _ = load_train_config(file, [*BASE, *overrides])
    return {key: (part.entry.name, part.options) for key, part in parts.selected()}


def nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def test_every_alias_has_a_case() -> None:
    assert CASES.keys() == ALIASES.keys()


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_and_its_key_give_the_same_options(alias: str, tmp_path: Path) -> None:
    value, selecting = CASES[alias]
    key, name = ALIASES[alias], ALIASES[alias].rpartition(".")[2]
    text = json.dumps(value)
    by_key = options(*selecting, f"{key}={text}")
    part = by_key[key.rpartition(".")[0]]
    assert getattr(part[1], name) == value
    assert getattr(options(*selecting)[key.rpartition(".")[0]][1], name) != value
    assert options(*selecting, f"{alias}={text}") == by_key
    assert options(f"{alias}={text}", *selecting) == by_key
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(nested(alias, value)))
    assert options(*selecting, file=file) == by_key


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_that_is_null_changes_nothing(alias: str) -> None:
    _, selecting = CASES[alias]
    assert options(*selecting, f"{alias}=null") == options(*selecting)


@pytest.mark.parametrize("preset", ["dapo", "ppo"])
def test_an_alias_changes_one_option_of_a_preset(preset: str) -> None:
    by_key = options(f"preset={preset}", "actor.policy_loss.clip_ratio_high=0.3")
    assert options(f"preset={preset}", "actor.clip_ratio_high=0.3") == by_key
    assert by_key["actor.policy_loss"][1].clip_ratio_high == 0.3
    assert by_key["actor.policy_loss"][1].clip_ratio_low == 0.2


def test_two_values_are_an_error_that_names_both_keys() -> None:
    with pytest.raises(
        ConfigError, match=r"^actor.clip_ratio_low: is 0.1, but actor.policy_loss.clip_ratio_low is 0.3: "
    ):
        options("actor.policy_loss.clip_ratio_low=0.3", "actor.clip_ratio_low=0.1")
    assert options("actor.policy_loss.clip_ratio_low=0.3", "actor.clip_ratio_low=0.3")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor.policy_loss=sapo", "actor.clip_ratio_low=0.1"], r"^actor.policy_loss.clip_ratio_low: unknown key; "),
        (["algorithm.adv_estimator=rloo", "algorithm.gamma=0.9"], r"^algorithm.adv_estimator.gamma: .* has no options"),
        (["actor.clip_ratio_low=0"], r"^actor.policy_loss.clip_ratio_low: must be greater than 0, not 0"),
        (["actor.policy_loss=3", "actor.clip_ratio_low=0.1"], r"^actor.policy_loss: must be a name, or a mapping"),
    ],
)
def test_an_option_that_the_part_refuses_is_named_by_its_key(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(*overrides)


def test_config_show_prints_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", *BASE, "actor.clip_ratio_high=0.3"]) == 0
    printed = capsys.readouterr().out
    assert "  policy_loss: {name: vanilla, clip_ratio_high: 0.3}" in printed
    assert not any(f" {alias.rpartition('.')[2]}:" in printed for alias in ALIASES if alias != "actor.clip_ratio_high")


def test_the_readme_lists_the_aliases() -> None:
    text = (ROOT / "plugins" / "corerl_verl" / "README.md").read_text()
    assert all(f"| `{alias}` | `{key}` |\n" in text for alias, key in ALIASES.items())


def older(config: TrainConfig, **given: Any) -> dict[str, Any]:
    """A config as it was in a checkpoint when the aliases were keys: every one is there, most are null."""
    values = dataclasses.asdict(config)
    for alias in ALIASES:
        section = values
        for name in alias.split(".")[:-1]:
            section = section[name]
        section[alias.rpartition(".")[2]] = given.get(alias)
    return values


def checkpoint(values: dict[str, Any]) -> Checkpoint:
    return Checkpoint(Path("c"), 1, {}, None, {}, values, {})


def test_a_run_of_before_the_aliases_goes_on() -> None:
    config, _, plugins = load_train_config(None, [*BASE, "actor.clip_ratio_high=0.3"])
    plain, _, _ = load_train_config(None, BASE)
    aliases = plugins.config_aliases()
    check_same(checkpoint(older(plain, **{"actor.clip_ratio_high": 0.3})), config, {}, aliases, {})
    check_same(checkpoint(older(plain)), plain, {}, aliases, {})
    check_same(checkpoint(older(plain)), plain, {}, {}, {})
    with pytest.raises(ConfigError, match=r"actor.policy_loss.clip_ratio_high: 0.2 -> 0.3"):
        check_same(checkpoint(older(plain, **{"actor.clip_ratio_high": 0.2})), config, {}, aliases, {})


def test_a_limit_may_still_change_between_runs() -> None:
    plain, _, plugins = load_train_config(None, BASE)
    limited, _, _ = load_train_config(None, [*BASE, "reward.memory_limit_gb=2"])
    values = older(plain, **{"reward.memory_limit_gb": 1.0})
    check_same(checkpoint(values), plain, {}, plugins.config_aliases(), {})
    check_same(checkpoint(values), limited, {}, plugins.config_aliases(), {})


def test_the_config_of_an_older_checkpoint_is_one_of_now() -> None:
    plain, _, _ = load_train_config(None, BASE)
    values = saved_config(checkpoint(older(plain, **{"algorithm.lam": 0.5})), load_plugins().config_aliases())
    assert values["algorithm"]["adv_estimator"] == {"name": "grpo", "lam": 0.5}
    assert saved_config(checkpoint(older(plain)), {}) == dataclasses.asdict(plain)
