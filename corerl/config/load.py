"""A YAML file and ``key=value`` overrides become a typed config."""

import copy
import dataclasses
import io
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl.config import typed
from corerl.contracts.options import selects_part
from corerl.errors import ConfigError
from corerl.files import read_text

C = TypeVar("C")

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w/*-]*)*")  # with / and *: data sources in reward.scorers

DEEPEST = 100
"""brackets within each other"""
LARGEST_BITS = 1024
"""of an integer"""


def load(cls: type[C], file: Path | None, overrides: Sequence[str] = ()) -> C:
    """The config ``cls`` of a file and overrides; ``dataclasses.asdict`` gives it as plain values.

    Args:
        file: YAML; None for the defaults.
        overrides: ``key=value`` with a dotted key and a YAML value, applied in order. A mapping or a list replaces the
            old value. ``actor.policy_loss.clip_ratio=0.1`` gives an option to the part of ``actor.policy_loss``.

    Raises:
        ConfigError: an unreadable file, a malformed override, or as for :func:`corerl.config.typed.build`.
    """
    return typed.build(cls, read(cls, file, overrides))


def read(
    cls: type[Any], file: Path | None, overrides: Sequence[str] = (), preset: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values of the file and the overrides over ``preset``, as nested plain values without defaults, checks and
    resolution.
    """
    values: dict[str, Any] = _over(copy.deepcopy(dict(preset or {})), _read_file(file) if file is not None else {})
    for override in overrides:
        key, value = parse_override(override)
        assign(cls, values, key.split("."), value)
    return values


def _over(base: Any, values: Any) -> Any:
    """``values`` over ``base``; another name than that of ``base`` takes nothing from it."""
    if isinstance(base, str) and isinstance(values, dict):
        base = {"name": base}
    if isinstance(values, str) and isinstance(base, Mapping) and base.get("name") == values:
        return base
    if not isinstance(base, Mapping) or not isinstance(values, dict):
        return values
    if values.get("name", base.get("name")) != base.get("name"):
        return values
    return {**base, **{key: _over(base.get(key), value) for key, value in values.items()}}


def check_nesting(text: str) -> None:
    """Raise YAMLError for too many brackets: YAML's readers recurse, and take minutes for thousands."""
    depth = 0
    for match in re.finditer(r"[\[\]{}]", text):
        depth += 1 if match[0] in "[{" else -1
        if depth > DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} brackets within each other")


def check_numbers(values: Any, where: str, key: str = "") -> None:
    """Raise ConfigError for an integer over LARGEST_BITS: Python prints at most 4,300 digits, hexadecimal can have
    more.
    """
    named = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for name, value in named:
        check_numbers(value, where, f"{key}.{name}" if key else str(name))
    if isinstance(values, int) and values.bit_length() > LARGEST_BITS:
        raise ConfigError(key, f"an integer of {values.bit_length():,} bits: {LARGEST_BITS} at most{where}")


def _read_file(file: Path) -> dict[str, Any]:
    try:
        text = read_text(file)
    except OSError as error:
        raise ConfigError("", f"cannot read the config file {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError("", f"{file}: must be a YAML file in UTF-8") from None
    content = _parsed(text, lambda: OmegaConf.load(io.StringIO(text)), "", file)
    if not isinstance(content, dict):
        raise ConfigError("", f"{file}: must be a mapping of sections such as 'model:', not a {type(content).__name__}")
    return typing.cast(dict[str, Any], content)


def _parsed(text: str, parse: Callable[[], Any], key: str, file: Path | None = None) -> Any:
    """Plain values of YAML, whose errors name the key, or the file with line and column."""
    start, end = (f"{file}: ", f" ({file})") if file else ("", "")
    try:
        check_nesting(text)
        content = OmegaConf.to_container(parse(), resolve=False)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        problem += ": indent by spaces, not by tabs" if "cannot start any token" in problem and "\t" in text else ""
        mark = getattr(error, "problem_mark", None)
        if file:
            place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise ConfigError("", f"{file}{place}: not valid YAML: {problem}") from None
        raise ConfigError(key, f"'{text}' is not valid YAML: {problem}") from None
    except OmegaConfBaseException as error:
        raise ConfigError(key or error.full_key or "", f"{typed.explain(error)}{end}") from None
    except (
        RecursionError,
        ValueError,
        OSError,
    ) as error:  # a text that is a number; sections within each other by indentation; a number too long
        raise ConfigError(key, f"{start}not valid YAML: {str(error).splitlines()[0]}") from None
    check_numbers(content, end, key)
    return content


def parse_override(override: str) -> tuple[str, Any]:
    """The dotted key and the plain value of ``key=value``; ConfigError for another form or a value that is no YAML."""
    key, separator, text = override.partition("=")
    if not separator or not _KEY.fullmatch(key):
        bare = override.lstrip("+-")
        signed = bare != override and "=" in bare
        remedy = f"write {bare}" if signed else "one is written key=value, e.g. actor.optim.lr=1e-5"
        raise ConfigError("", f"'{override}' is not an override; {remedy}")
    return key, _parsed(text, lambda: OmegaConf.from_dotlist([f"value={text}"]), key)["value"]


def assign(cls: type[Any], values: dict[str, Any], key: list[str], value: Any) -> None:
    """Put ``value`` at ``key``; missing sections are made, and a selected name becomes ``{name: …}``.

    The options of a part stay if ``value`` is the part's name, and go if it is the name of another part.
    """
    *sections, last = key
    for depth, part in enumerate(sections, start=1):
        present = values.get(part)
        if present is None:
            present = _default_name(cls, key[:depth])
        if isinstance(present, str):
            present = {"name": present}
        elif last == "name" and depth == len(sections) and selects_part(_hint(cls, sections)):
            present = present if isinstance(present, dict) and present.get("name") == value else {}
        values[part] = values = present if isinstance(present, dict) else {}
    present = values.get(last)
    if not (isinstance(present, dict) and isinstance(value, str) and present.get("name") == value):
        values[last] = value


def _hint(cls: type[Any], key: list[str]) -> Any:
    """The declared type at a key, or None."""
    hint: Any = cls
    for part in key:
        hint = typing.get_type_hints(hint).get(part) if dataclasses.is_dataclass(hint) else None
    return hint


def _default_name(cls: type[Any], key: list[str]) -> str | None:
    """The default of a key that selects a registered name, or None."""
    if not selects_part(_hint(cls, key)):
        return None
    default = next(field.default for field in dataclasses.fields(_hint(cls, key[:-1])) if field.name == key[-1])
    return default if isinstance(default, str) else None
