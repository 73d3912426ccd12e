"""Aliases: other spellings of keys, replaced by the keys before all checks."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corerl.config.load import assign, read
from corerl.errors import ConfigError

MISSING = object()


def canonical(cls: type[Any], values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """``values`` (nested plain values of the config ``cls``) with every alias, also in interpolations, replaced by its
    key.

    Args:
        aliases: alias -> key, both dotted; an option of a selected part is a key too. An alias that is null is removed.

    Raises:
        ConfigError: an alias and its key have different values.
    """
    result: dict[str, Any] = renamed(values, aliases)
    for alias, key in aliases.items():
        value = take(result, alias)
        if value is MISSING or value is None:
            continue
        selected, present = at(result, key.rpartition(".")[0]), at(result, key)
        if selected not in (MISSING, None) and not isinstance(selected, str | dict):
            continue  # the error is about that value
        if present not in (MISSING, None, value):
            raise ConfigError(alias, f"is {value}, but {key} is {present}: both are one key, so give one of them")
        assign(cls, result, key.split("."), value)
    return result


def read_over_preset(
    cls: type[Any], preset: Mapping[str, Any], file: Path | None, overrides: Sequence[str], aliases: Mapping[str, str]
) -> dict[str, Any]:
    """The values of file and overrides over those of the preset, without aliases.

    Options of the preset's part stay if file and overrides select the same part. An alias that is null removes the
    preset's option.

    Raises:
        ConfigError: as for :func:`corerl.config.load.read` and :func:`canonical`.
    """
    own = canonical(cls, read(cls, file, overrides), aliases)
    if not preset:
        return own
    values: dict[str, Any] = renamed(read(cls, file, overrides, canonical(cls, preset, aliases)), aliases)
    for alias, key in aliases.items():
        value = take(values, alias)
        if value is None and at(own, key) is MISSING:
            take(values, key)
        elif value is not MISSING and value is not None:
            assign(cls, values, key.split("."), value)
    return values


def at(values: Any, key: str) -> Any:
    """The value at a dotted key of nested values; MISSING if there is none."""
    for part in key.split("."):
        values = values.get(part, MISSING) if isinstance(values, Mapping) else MISSING
    return values


def take(values: dict[str, Any], key: str) -> Any:
    """As :func:`at`, and the value is removed."""
    section, _, name = key.rpartition(".")
    below = at(values, section) if section else values
    return below.pop(name, MISSING) if isinstance(below, dict) else MISSING


def renamed(value: Any, aliases: Mapping[str, str]) -> Any:
    """A copy of nested values, with keys for the aliases in its interpolations."""
    if isinstance(value, Mapping):
        return {name: renamed(item, aliases) for name, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, aliases) for item in value]
    if isinstance(value, str) and "${" in value:
        return re.sub(r"\$\{\s*([\w.]+)\s*\}", lambda match: f"${{{aliases.get(match[1], match[1])}}}", value)
    return value
