"""From plain values to a typed dataclass: unknown keys, wrong types and ranges are one-line errors."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationResolutionError, OmegaConfBaseException

from corerl.config import nearest_keys
from corerl.config.interpolations import check_length
from corerl.contracts.options import check_ranges, did_you_mean, selects_part
from corerl.errors import ConfigError
from corerl.secrets import public

C = TypeVar("C")

Explain = Callable[[str], str | None]
"""a remedy for an unknown key, as the end of a sentence, or None"""

Unknown = Callable[[str, Any], tuple[str, str]]
"""key and value -> key and message of the error"""

OmegaConf.register_resolver("env", lambda name: f"${{env:{name}}}", replace=True)  # :mod:`corerl.secrets`
OmegaConf.register_resolver("oc.env", public, replace=True)

MISSING = "???"
"""a required value that is not given"""

_SCALARS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_PLURALS = {bool: "of true and false", int: "of integers", float: "of numbers", str: "of strings"}
_TRUTH = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}


def build(cls: type[C], values: Mapping[str, Any], path: str = "", explain_key: Explain | None = None) -> C:
    """An instance of the dataclass ``cls`` with ``values`` (nested plain values) over its defaults.

    Args:
        explain_key: gives the remedy for an unknown key, or None.

    Raises:
        ConfigError: an unknown key, a wrong type, a missing value or a number out of range; ``path`` precedes the key.
    """
    filled = fill(cls, values, explain_key, path)
    try:
        instance: C = _instance(cls, filled, path)
    except ValueError as error:  # of a __post_init__
        raise ConfigError(path, str(error)) from None
    check_ranges(instance, path)
    return instance


def fill(
    cls: type[Any], values: Mapping[str, Any], explain_key: Explain | None = None, path: str = ""
) -> dict[str, Any]:
    """``values`` over the defaults of ``cls`` as nested plain values, MISSING for a required value.

    Raises:
        ConfigError: as for :func:`build`, except missing values and ranges.
    """
    known = nearest_keys.dotted_keys(cls, path)
    unknown = functools.partial(nearest_keys.unknown, known=known, explain=explain_key)
    merged = _over_defaults(cls, {}, values, path, unknown)
    check_length(values, path)
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(merged), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_join(path, error.full_key or ""), explain(error)) from None
    return typing.cast(dict[str, Any], _converted(cls, resolved, path))


def type_words(hint: Any) -> str:
    """What a value of a type is, in words.

    >>> type_words(list[float] | None)
    'a list of numbers, or null'
    """
    hint, optional = _without_none(hint)
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


def explain(error: OmegaConfBaseException) -> str:
    """The meaning of OmegaConf's error for the author of the config."""
    text = str(error.msg or error).splitlines()[0]
    if isinstance(error, GrammarParseError):
        return f"{text}; an interpolation is written ${{section.key}} or ${{oc.env:VARIABLE}}"
    if isinstance(error, InterpolationResolutionError):
        return text.rpartition("while resolving interpolation: ")[2].strip('"')
    return text


def _over_defaults(
    cls: type[Any], defaults: Mapping[str, Any], values: Mapping[str, Any], path: str, unknown: Unknown
) -> dict[str, Any]:
    """``values`` over ``defaults`` over those of ``cls``, section by section; nothing is converted."""
    hints = typing.get_type_hints(cls)
    for name, item in values.items():
        if name not in hints:
            raise ConfigError(*unknown(_join(path, str(name)), item))
    merged = {}
    for field in dataclasses.fields(cls):
        name, section = field.name, _without_none(hints[field.name])[0]
        default = defaults.get(name, _default(field, section))
        value = values.get(name, default)
        if dataclasses.is_dataclass(section) and isinstance(value, Mapping):
            inner: Any = section
            value = _over_defaults(inner, default or {}, value, _join(path, name), unknown)
        elif (item := _item(section)) is not None and isinstance(value, Mapping):
            value = {
                key: _over_defaults(item, {}, each, _join(path, f"{name}.{key}"), unknown)
                if isinstance(each, Mapping)
                else each
                for key, each in value.items()
            }
        merged[name] = value
    return merged


def _item(hint: Any) -> Any:
    """The dataclass of the values of a mapping, or None."""
    arguments = typing.get_args(hint) if typing.get_origin(hint) is dict else ()
    return arguments[1] if arguments and dataclasses.is_dataclass(arguments[1]) else None


def _default(field: "dataclasses.Field[Any]", hint: Any) -> Any:
    """The default of a field as a plain value; of a section without one, {}."""
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        value = field.default
    else:
        return {} if dataclasses.is_dataclass(hint) else MISSING
    return dataclasses.asdict(value) if dataclasses.is_dataclass(hint) and value is not None else value


def _converted(hint: Any, value: Any, key: str) -> Any:
    """A plain value of the declared type.

    Raises:
        ConfigError: it has another type.
    """
    hint, optional = _without_none(hint)
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint is Any or value == MISSING or (value is None and optional):
        return value
    if origin is typing.Union:
        for member in arguments:
            if type(value) is (typing.get_origin(member) or member) or value in _choices(member):
                return _converted(member, value, key)
    elif dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        return {name: _converted(hints[name], item, _join(key, name)) for name, item in value.items()}
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        item_hint = arguments[0] if arguments else Any
        return [_converted(item_hint, item, f"{key}[{index}]") for index, item in enumerate(value)]
    elif origin is dict and isinstance(value, dict):
        item_hint = arguments[1] if arguments else Any
        return {str(name): _converted(item_hint, item, _join(key, str(name))) for name, item in value.items()}
    elif value in _choices(hint):
        return value
    elif hint in _SCALARS and (scalar := _scalar(hint, value)) is not None:
        return scalar
    raise ConfigError(key, _must_be(hint, optional, value))


def _choices(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _scalar(kind: type[Any], value: Any) -> bool | int | float | str | None:
    """A value as a bool, int, float or str, also written as text; None if it is of another type."""
    if kind is bool:
        return _TRUTH.get(str(value).lower())
    takes_fraction = kind is not int
    if isinstance(value, bool) or not isinstance(value, str | int | (float if takes_fraction else int)):
        return None
    try:
        return typing.cast(int | float | str, kind(value))
    except ValueError:
        return None


def _instance(hint: Any, value: Any, key: str) -> Any:
    """Filled values as what ``hint`` declares: dataclasses, and tuples."""
    if value == MISSING:
        raise ConfigError(key, f"must be given: {type_words(hint)}")
    hint, _ = _without_none(hint)
    if dataclasses.is_dataclass(hint) and value is not None:
        hints = typing.get_type_hints(hint)
        return typing.cast(Any, hint)(
            **{name: _instance(hints[name], item, _join(key, name)) for name, item in value.items()}
        )
    if (item := _item(hint)) is not None and value is not None:
        return {name: _instance(item, each, _join(key, name)) for name, each in value.items()}
    return tuple(value) if typing.get_origin(hint) is tuple and value is not None else value


def _without_none(hint: Any) -> tuple[Any, bool]:
    """``X | None`` → (X, True); anything else → (itself, False)."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    members = [member for member in typing.get_args(hint) if member is not types.NoneType]
    return typing.Union[tuple(members)], len(members) < len(typing.get_args(hint))  # noqa: UP007


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


def _join(path: str, key: str) -> str:
    return ".".join(part for part in (path, key) if part)
