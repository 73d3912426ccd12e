"""Wrong presets."""

import math
from pathlib import Path
from typing import Any

from planted.fault import Fault


def cautious() -> dict[str, Any]:
    """Small steps."""
    return {"actor": {"optim": {"lr": 1e-7}, "grad_clip": 0.5}, "rollout": {"n": 16}}


def unknown_key() -> dict[str, Any]:
    """As other frameworks call it."""
    return {"actor": {"optim": {"learning_rate": 1e-7}}}


def wrong_type() -> dict[str, Any]:
    """A word for a number."""
    return {"rollout": {"n": "many"}}


def out_of_range() -> dict[str, Any]:
    """No responses."""
    return {"rollout": {"n": 0}}


def not_plain() -> dict[str, Any]:
    """A tuple."""
    return {"actor": {"optim": {"betas": (0.9, 0.95)}}}


class Rate(float):
    """A number that YAML cannot write, as those of numpy are."""


def number_of_a_library() -> dict[str, Any]:
    """A subclass of float."""
    return {"actor": {"optim": {"lr": Rate(1e-7)}}}


def not_finite() -> dict[str, Any]:
    """NaN for "none"."""
    return {"actor": {"grad_clip": math.nan}}


def key_is_a_number() -> dict[Any, Any]:
    """A number as a key."""
    return {"actor": {"optim": {1: 1e-7}}}


def a_list() -> list[str]:
    """Overrides, as on a command line."""
    return ["actor.optim.lr=1e-7"]


def asks_for_plugins() -> dict[str, Any]:
    """A preset is read after the plugins are loaded."""
    return {"plugins": {"disable": ["corerl-ppo"]}}


_VALUES: dict[str, Any] = {"actor": {"optim": {"lr": 1e-7}}}


def always_the_same_object() -> dict[str, Any]:
    """The module's own mapping."""
    return _VALUES


_CALLS: list[int] = []


def smaller_each_time() -> dict[str, Any]:
    """The second call returns other values."""
    _CALLS.append(1)
    return {"actor": {"optim": {"lr": 1e-6 / len(_CALLS)}}}


def unknown_option() -> dict[str, Any]:
    """Of a part that is always there."""
    return {"tracking": {"loggers": [{"name": "console", "colour": "red"}]}}


def named_after_the_folder() -> dict[str, Any]:
    """The values depend on the working folder."""
    return {"tracking": {"experiment_name": Path.cwd().name}}


def _fault(name: str, flaw: str, wrong: Any, check: str, reason: str) -> Fault:
    return Fault("presets", name, flaw, wrong, cautious, check, reason)


_ACCEPTED = "accepted_by_the_config"

FAULTS = [
    _fault("unknown_key", "a key has another name", unknown_key, _ACCEPTED, "actor.optim.learning_rate"),
    _fault("wrong_type", "a number is a word", wrong_type, _ACCEPTED, "rollout.n: must be an integer, not 'many'"),
    _fault("out_of_range", "a value is out of range", out_of_range, _ACCEPTED, "rollout.n: must be at least 1, not 0"),
    _fault("asks_for_plugins", "it disables a plugin", asks_for_plugins, _ACCEPTED, "it sets plugins, which is read"),
    _fault("not_plain", "a list is a tuple", not_plain, "plain_values", "actor.optim.betas is a tuple"),
    _fault("number_of_a_library", "a number is no plain float", number_of_a_library, "plain_values", "lr is a Rate"),
    _fault(
        "not_finite", "a value is NaN", not_finite, "plain_values", "actor.grad_clip is nan: a value must be finite"
    ),
    _fault("key_is_a_number", "a key is a number", key_is_a_number, "plain_values", "actor.optim has the key 1"),
    _fault("a_list", "it returns a list", a_list, "plain_values", "it returns list, not a mapping of config sections"),
    _fault(
        "always_the_same_object",
        "all calls return one object",
        always_the_same_object,
        "deterministic",
        "a change to the values that it returned changes what it returns",
    ),
    _fault(
        "smaller_each_time", "it counts calls", smaller_each_time, "deterministic", "two calls give different values"
    ),
    _fault(
        "unknown_option",
        "a part gets an option that it has not",
        unknown_option,
        "parts_take_their_options",
        "a part that it selects does not take its options: tracking.loggers",
    ),
    _fault(
        "named_after_the_folder",
        "the working folder is in a value",
        named_after_the_folder,
        "same_in_a_fresh_process",
        "in a process in another working folder",
    ),
]
