"""Aliases become the keys that they stand for."""

from typing import Any

import pytest

from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl_check.aliases import canonical

ALIASES = {
    "data.batch_size": "data.train_batch_size",
    "actor.clip_low": "actor.policy_loss.clip_ratio_low",
    "actor.clip_high": "actor.policy_loss.clip_ratio_high",
    "critic.offload": "critic.strategy.offload",
}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"data": {"batch_size": 8}}, {"data": {"train_batch_size": 8}}),
        ({"actor": {"clip_low": 0.1}}, {"actor": {"policy_loss": {"name": "vanilla", "clip_ratio_low": 0.1}}}),
        (
            {"actor": {"policy_loss": "gspo", "clip_low": 0.1, "clip_high": 0.3}},
            {"actor": {"policy_loss": {"name": "gspo", "clip_ratio_low": 0.1, "clip_ratio_high": 0.3}}},
        ),
        (
            {"actor": {"policy_loss": {"name": "gspo", "x": 1}, "clip_low": 0.1}},
            {"actor": {"policy_loss": {"name": "gspo", "x": 1, "clip_ratio_low": 0.1}}},
        ),
        (
            {"actor": {"policy_loss": {"name": "gspo", "clip_ratio_low": 0.1}, "clip_low": 0.1}},
            {"actor": {"policy_loss": {"name": "gspo", "clip_ratio_low": 0.1}}},
        ),
        ({"actor": {"policy_loss": "gspo", "clip_low": None}}, {"actor": {"policy_loss": "gspo"}}),
        ({"critic": {"offload": True}}, {"critic": {"strategy": {"offload": True}}}),
        ({"actor": None, "data": 3}, {"actor": None, "data": 3}),
    ],
)
def test_an_alias_becomes_its_key(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert canonical(TrainConfig, values, ALIASES) == expected


def test_the_given_values_stay_as_they_are() -> None:
    values = {"actor": {"policy_loss": {"name": "gspo"}, "clip_low": 0.1}}
    canonical(TrainConfig, values, ALIASES)
    assert values == {"actor": {"policy_loss": {"name": "gspo"}, "clip_low": 0.1}}


def test_two_values_for_one_key_are_an_error_that_names_both() -> None:
    values = {"actor": {"policy_loss": {"name": "vanilla", "clip_ratio_low": 0.3}, "clip_low": 0.1}}
    with pytest.raises(
        ConfigError, match=r"^actor.clip_low: is 0.1, but actor.policy_loss.clip_ratio_low is 0.3: .* give one of them$"
    ):
        canonical(TrainConfig, values, ALIASES)


def test_an_interpolation_of_an_alias_is_one_of_its_key() -> None:
    values = {
        "actor": {"clip_low": 0.1, "clip_high": "${actor.clip_low}"},
        "data": {"files": ["${ actor.clip_low }/x"]},
    }
    changed = canonical(TrainConfig, values, ALIASES)
    assert changed["actor"]["policy_loss"]["clip_ratio_high"] == "${actor.policy_loss.clip_ratio_low}"
    assert changed["data"]["files"] == ["${actor.policy_loss.clip_ratio_low}/x"]
