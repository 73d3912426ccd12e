"""From plain values to a typed dataclass: unknown keys, wrong types and ranges are one-line errors."""

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationResolutionError, OmegaConfBaseException, ValidationError

from corerl.config import nearest_keys
from corerl.config.interpolations import check_length
from corerl.config.unions import declared, is_mixed, plain_class, without_none
from corerl.contracts.options import check_ranges, did_you_mean, selects_part
from corerl.errors import ConfigError
from corerl.secrets import public

C = TypeVar("C")

Explain = Callable[[str], str | None]
"""a remedy for an unknown key, as the end of a sentence, or None"""

OmegaConf.register_resolver("env", lambda name: f"${{env:{name}}}", replace=True)  # :mod:`corerl.secrets`
OmegaConf.register_resolver("oc.env", public, replace=True)

_SCALARS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_PLURALS = {bool: "of true and false", int: "of integers", float: "of numbers", str: "of strings"}


def build(cls: type[C], values: Mapping[str, Any], path: str = "", explain_key: Explain | None = None) -> C:
    """An instance of the dataclass ``cls`` with ``values`` (nested plain values) over its defaults.

    Args:
        explain_key: is asked about an unknown key before the nearest keys are named.

    Raises:
        ConfigError: an unknown key, a wrong type, a missing value or a number out of range; ``path`` is put before
            the key.
    """
    merged = _merge(cls, values, path, explain_key)
    with _readable(cls, values, path):
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise ConfigError(_join(path, missing[0]), f"must be given: {type_words(_type_at(cls, missing[0]))}")
        try:
            instance = declared(cls, OmegaConf.to_object(merged))
        except OmegaConfBaseException:
            raise
        except ValueError as error:  # the dataclass's own __post_init__
            raise ConfigError(path, str(error)) from None
    assert isinstance(instance, cls)
    check_ranges(instance, path)
    return instance


def fill(cls: type[Any], values: Mapping[str, Any], explain_key: Explain | None = None) -> dict[str, Any]:
    """``values`` over the defaults of ``cls`` as nested plain values, ``"???"`` where a required value is missing.

    Args:
        explain_key: as for :func:`build`.

    Raises:
        ConfigError: an unknown key or a wrong type.
    """
    merged = _merge(cls, values, "", explain_key)
    with _readable(cls, values, ""):
        return typing.cast(dict[str, Any], OmegaConf.to_container(merged, resolve=True))


def type_words(hint: Any) -> str:
    """What a value of a type is, in words.

    >>> type_words(list[float] | None)
    'a list of numbers, or null'
    """
    hint, optional = without_none(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS:
        words = _SCALARS[hint]
    elif selects_part(hint):
        words = "a name, or a mapping with 'name' and options"
    elif origin is typing.Union:
        words = ", or ".join(map(type_words, arguments))
    elif origin is typing.Literal:
        words = f"one of {', '.join(map(str, arguments))}"
    elif origin in (list, tuple):
        words = f"a list {_PLURALS.get(arguments[0], '') if arguments else ''}".rstrip()
    elif origin is dict or dataclasses.is_dataclass(hint):
        words = "a mapping"
    else:
        words = "any value" if hint is Any else f"a value of type {getattr(hint, '__name__', hint)}"
    return f"{words}, or null" if optional else words


def _merge(cls: type[Any], values: Mapping[str, Any], path: str, explain_key: Explain | None) -> DictConfig:
    known = nearest_keys.dotted_keys(cls, path)
    _check_shape(cls, values, path, functools.partial(nearest_keys.unknown, known=known, explain=explain_key))
    check_length(values, path)
    sections: dict[str, Any] = {
        key: {} for key, hint in typing.get_type_hints(cls).items() if dataclasses.is_dataclass(hint)
    }
    given: dict[str, Any] = {**sections, **values}
    with _readable(cls, values, path):
        return typing.cast(DictConfig, OmegaConf.merge(OmegaConf.structured(plain_class(cls)), OmegaConf.create(given)))


def _check_shape(hint: Any, value: Any, key: str, unknown: Callable[[str, Any], tuple[str, str]]) -> None:
    """Raise for unknown keys and for mappings, lists and scalars in the wrong place; OmegaConf converts the scalars."""
    hint, optional = without_none(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if (isinstance(value, str) and ("${" in value or value == "???")) or hint is Any or (value is None and optional):
        return
    fits = True
    if is_mixed(hint):
        member = next((each for each in arguments if isinstance(value, typing.get_origin(each) or each)), None)
        fits = member is not None
        if fits:
            _check_shape(member, value, key, unknown)
    elif dataclasses.is_dataclass(hint):
        fits = isinstance(value, Mapping)
        hints = typing.get_type_hints(hint)
        for name, item in value.items() if fits else ():
            if name not in hints:
                raise ConfigError(*unknown(_join(key, str(name)), item))
            _check_shape(hints[name], item, _join(key, name), unknown)
    elif origin is list:
        fits = isinstance(value, list)
        for index, item in enumerate(value) if fits and arguments else ():
            _check_shape(arguments[0], item, f"{key}[{index}]", unknown)
    elif origin is dict:
        fits = isinstance(value, Mapping)
        for name, item in value.items() if fits and arguments else ():
            _check_shape(arguments[1], item, _join(key, str(name)), unknown)
    elif hint in _SCALARS or origin is typing.Literal:
        fits = not isinstance(value, Mapping | list) and not (hint is str and isinstance(value, bool))
    if not fits:
        raise ConfigError(key, _must_be(hint, optional, value))


@contextmanager
def _readable(cls: type[Any], values: Mapping[str, Any], path: str) -> Iterator[None]:
    """Turn OmegaConf's errors into ConfigErrors that speak of keys and values."""
    try:
        yield
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        raise ConfigError(_join(path, key), explain(error, cls, values)) from None


def explain(error: OmegaConfBaseException, cls: type[Any] | None = None, values: Any = None) -> str:
    """What OmegaConf's error means for the person who wrote the config."""
    text = str(error.msg or error).splitlines()[0]
    if isinstance(error, GrammarParseError):
        return f"{text}; an interpolation is written ${{section.key}} or ${{oc.env:VARIABLE}}"
    if isinstance(error, InterpolationResolutionError):
        return text.rpartition("while resolving interpolation: ")[2].strip('"')
    if isinstance(error, ValidationError) and cls is not None and error.full_key:
        hint, optional = without_none(_type_at(cls, error.full_key))
        return _must_be(hint, optional, _value_at(values, error.full_key))
    return text


def _must_be(hint: Any, optional: bool, value: Any) -> str:
    words = type_words(hint | None if optional else hint)
    remedy = ""
    if typing.get_origin(hint) is typing.Literal and isinstance(value, str):
        remedy = did_you_mean(value, [str(choice) for choice in typing.get_args(hint)])
    elif dataclasses.is_dataclass(hint):
        remedy = f"; its keys are {', '.join(field.name for field in dataclasses.fields(hint))}"
    elif typing.get_origin(hint) is list and isinstance(value, str):
        remedy = f"; write [{value}]"
    return f"must be {words}, not {_shown(value)}{remedy}"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parts(key: str) -> list[str]:
    return [part for part in re.split(r"[.\[\]]+", key) if part]


def _type_at(cls: type[Any], key: str) -> Any:
    """The declared type of ``optim.betas[0]`` below ``cls``; Any where none is declared."""
    hint: Any = cls
    for part in _parts(key):
        hint, _ = without_none(hint)
        if dataclasses.is_dataclass(hint):
            hint = typing.get_type_hints(hint).get(part, Any)
        else:
            hint = (typing.get_args(hint) or (Any,))[-1]
    return hint


def _value_at(values: Any, key: str) -> Any:
    for part in _parts(key):
        values = values[int(part)] if isinstance(values, list) else values.get(part)
    return values


def _join(path: str, key: str) -> str:
    return ".".join(part for part in (path, key) if part)
