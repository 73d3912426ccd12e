"""Wrong presets, and the checks that catch them."""

from typing import Any

import pytest


def cautious() -> dict[str, Any]:
    return {"actor": {"optim": {"lr": 1e-7}, "grad_clip": 0.5}, "rollout": {"n": 16}}


def test_a_right_preset_passes(failures: Any) -> None:
    assert failures("presets", cautious) == {}


def unknown_key() -> dict[str, Any]:
    return {"actor": {"optim": {"learning_rate": 1e-7}}}


def wrong_type() -> dict[str, Any]:
    return {"rollout": {"n": "many"}}


def out_of_range() -> dict[str, Any]:
    return {"rollout": {"n": 0}}


def not_plain() -> dict[str, Any]:
    return {"actor": {"optim": {"betas": (0.9, 0.95)}}}


def a_list() -> list[str]:
    return ["actor.optim.lr=1e-7"]


def asks_for_plugins() -> dict[str, Any]:
    return {"plugins": {"disable": ["corerl-ppo"]}}


VALUES: dict[str, Any] = {"actor": {"optim": {"lr": 1e-7}}}


def always_the_same_object() -> dict[str, Any]:
    return VALUES


def unknown_option() -> dict[str, Any]:
    return {"tracking": {"loggers": [{"name": "console", "colour": "red"}]}}


@pytest.mark.parametrize(
    ("preset", "check", "message"),
    [
        (unknown_key, "accepted_by_the_config", "the config does not take it: actor.optim.learning_rate"),
        (wrong_type, "accepted_by_the_config", "rollout.n: must be an integer, not 'many'"),
        (out_of_range, "accepted_by_the_config", "rollout.n: must be at least 1, not 0"),
        (asks_for_plugins, "accepted_by_the_config", "it sets plugins, which is read before a preset is"),
        (not_plain, "plain_values", "actor.optim.betas is a tuple: only what a YAML file can hold is a value"),
        (a_list, "plain_values", "it returns list, not a mapping of config sections"),
        (always_the_same_object, "deterministic", "a change to the values that it returned changes what it returns"),
        (
            unknown_option,
            "parts_take_their_options",
            "a part that it selects does not take its options: tracking.loggers",
        ),
    ],
)
def test_a_wrong_preset_is_caught(failures: Any, preset: Any, check: str, message: str) -> None:
    assert message in failures("presets", preset, only=check)[check]


def test_a_part_that_is_not_installed_is_skipped_and_named(outcomes: Any) -> None:
    def elsewhere() -> dict[str, Any]:
        return {"actor": {"policy_loss": "of_another_plugin"}}

    result = outcomes("presets", elsewhere)["parts_take_their_options"]
    assert result.status == "skipped"
    assert "unknown policy loss 'of_another_plugin'" in result.reason
