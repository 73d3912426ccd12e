"""Checks of presets: the contract of :mod:`corerl.contracts.presets`."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from corerl.contracts.presets import Preset
from corerl.errors import ConfigError, RequestError
from corerl.registry import Selected
from corerl_testing.fresh import same_in_a_fresh_process
from corerl_testing.results import CheckFailed, CheckSkipped, Run

PLAIN = (str, int, float, bool, type(None))


def checks(selected: Selected[Preset]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    checks: dict[str, Callable[[Mapping[str, Any]], None]] = {
        "plain_values": _plain_values,
        "accepted_by_the_config": _accepted_by_the_config,
        "parts_take_their_options": _parts_take_their_options,
    }
    for name, check in checks.items():
        yield name, partial(_with_values, selected, check)
    yield "deterministic", partial(_deterministic, selected)
    yield "same_in_a_fresh_process", partial(same_in_a_fresh_process, outcomes, selected)


def outcomes(selected: Selected[Preset], backwards: bool = False) -> list[tuple[str, str]]:
    """The returned values."""
    return [("a call", repr(selected.load()()))]


def _with_values(selected: Selected[Preset], check: Callable[[Mapping[str, Any]], None]) -> None:
    values: object = selected.load()()
    if not isinstance(values, Mapping):
        raise CheckFailed(f"it returns {type(values).__name__}, not a mapping of config sections")
    check(values)


def _plain_values(values: Mapping[str, Any]) -> None:
    _expect_plain("", values)


def _expect_plain(key: str, value: Any) -> None:
    """Check that values can be stored in a YAML file."""
    if isinstance(value, dict):
        for name, item in value.items():
            if type(name) is not str:
                raise CheckFailed(f"{key or 'it'} has the key {name!r}: a key must be text")
            _expect_plain(f"{key}.{name}" if key else name, item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _expect_plain(f"{key}[{index}]", item)
    elif type(value) not in PLAIN:  # a subclass, such as numpy.float64, cannot be written
        raise CheckFailed(f"{key} is a {type(value).__name__}: only what a YAML file can hold is a value")
    elif isinstance(value, float) and not math.isfinite(value):
        raise CheckFailed(f"{key} is {value}: a value must be finite")


def _accepted_by_the_config(values: Mapping[str, Any]) -> None:
    """Known keys, values of the declared types and in their ranges."""
    try:
        _config(values)
    except ConfigError as error:
        raise CheckFailed(f"the config does not take it: {error}") from error
    for key in ("preset", "plugins"):
        if key in values:
            raise CheckFailed(f"it sets {key}, which is read before a preset is: only the config file can set it")


def _parts_take_their_options(values: Mapping[str, Any]) -> None:
    """The installed parts that the preset selects accept its options."""
    from corerl.plugins import load_plugins
    from corerl.registry.parts import resolve_parts

    try:
        config = _config(values)
    except ConfigError as error:
        raise CheckSkipped(f"the config does not take it: {error}") from error
    try:
        resolve_parts(config, load_plugins().registries)
    except ConfigError as error:
        raise CheckFailed(f"a part that it selects does not take its options: {error}") from error
    except RequestError as error:
        raise CheckSkipped(f"a part that it selects is not here: {error}") from error


def _config(values: Mapping[str, Any]) -> Any:
    """The typed config, with a placeholder for required values of the user."""
    from corerl.config import typed
    from corerl.contracts.config import TrainConfig
    from corerl.plugins import load_plugins
    from corerl_check.aliases import canonical

    known = canonical(TrainConfig, values, load_plugins().config_aliases())
    return typed.build(TrainConfig, _with_placeholders(typed.fill(TrainConfig, known)))


def _with_placeholders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_placeholders(item) for key, item in value.items()}
    return "given-by-the-user" if value == "???" else value


def _deterministic(selected: Selected[Preset]) -> None:
    preset = selected.load()
    first = preset()
    kept = copy.deepcopy(first)
    second = preset()
    if second != kept:
        raise CheckFailed("two calls give different values")
    _spoil(second)
    if preset() != kept:
        raise CheckFailed("a change to the values that it returned changes what it returns later: return new ones")


def _spoil(values: Any) -> None:
    """Change every mapping, as a reader of the values may."""
    if isinstance(values, dict):
        for item in values.values():
            _spoil(item)
        values["spoilt"] = True
