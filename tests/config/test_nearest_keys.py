"""What an unknown key may have been meant to be."""

import pytest

from corerl.config.nearest_keys import dotted_keys, nearest, unknown
from corerl.contracts.config import TrainConfig

KEYS = dotted_keys(TrainConfig)


def test_every_key_is_listed_with_its_sections() -> None:
    assert {"model", "model.path", "actor.optim", "actor.optim.lr", "rollout.val_kwargs.n"} <= set(KEYS)
    assert "adv_estimator" not in KEYS


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("data.lr", ["actor.optim.lr", "critic.optim.lr"]),
        ("lr", ["actor.optim.lr", "critic.optim.lr"]),
        ("actor.rollout_n", ["rollout.n"]),
        ("data.n", ["rollout.n", "rollout.val_kwargs.n"]),
        ("actor_rollout_ref.actor.optim.lr", ["actor.optim.lr"]),
        ("actor_rollout_ref.model.path", ["model.path"]),
        ("algoritm.adv_estimator", ["algorithm.adv_estimator"]),
        ("modle", ["model"]),
        ("rollout.temprature", ["rollout.temperature"]),
        ("data.val_kwarg", ["rollout.val_kwargs"]),
        ("trainer.xyzzy", []),
    ],
)
def test_the_nearest_key(key: str, near: list[str]) -> None:
    assert nearest(key, KEYS) == near


def test_an_unknown_section_is_answered_by_its_first_key() -> None:
    key, message = unknown("actor_rollout_ref", {"rollout": {"temperature": 1}}, KEYS)
    assert (key, message) == (
        "actor_rollout_ref.rollout.temperature",
        "unknown key; did you mean rollout.temperature?",
    )


def test_a_key_like_no_other_is_answered_by_the_keys_of_its_section() -> None:
    _, message = unknown("ref.xyzzy", 1, KEYS)
    assert message.startswith("unknown key; the keys of ref are path, ")


def test_a_plugin_is_asked_before_the_nearest_key_is_named() -> None:
    remedies = {"trainer.logger": "it is tracking.loggers"}
    assert unknown("trainer.logger", 1, KEYS, remedies.get)[1] == "unknown key; it is tracking.loggers"
    assert unknown("data.lr", 1, KEYS, remedies.get)[1].startswith("unknown key; did you mean actor.optim.lr")
