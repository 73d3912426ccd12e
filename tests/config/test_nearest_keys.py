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
        "unknown key; did you mean rollout.temperature? (`corerl config from-verl` translates all of verl's keys)",
    )


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("trainer.logger", "verl's key is tracking.loggers in CoreRL: a list"),
        (
            "actor_rollout_ref.actor.fsdp_config.param_offload",
            "verl's key is actor.strategy.param_offload in CoreRL",
        ),
        ("critic.model.path", "verl's key is critic.path in CoreRL"),
        (
            "actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
            "verl's key has no counterpart: actor.use_dynamic_bsz applies to all",
        ),
    ],
)
def test_a_key_of_verl_is_answered_by_what_it_is_here(key: str, hint: str) -> None:
    assert unknown(key, 1, KEYS) == (key, f"unknown key; {hint}")


def test_a_key_of_nobody_below_verls_prefix_is_answered_by_the_sections_keys() -> None:
    _, message = unknown("actor_rollout_ref.ref.xyzzy", 1, KEYS)
    assert message.startswith("unknown key; the keys of ref are path, ")
