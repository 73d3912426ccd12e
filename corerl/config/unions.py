"""Types such as ``str | list[str]``, which OmegaConf does not know: it merges a class that has Any in their place."""

import dataclasses
import functools
import types
import typing
from typing import Any


def without_none(hint: Any) -> tuple[Any, bool]:
    """``X | None`` → (X, True); anything else → (itself, False)."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    members = [member for member in typing.get_args(hint) if member is not types.NoneType]
    return members[0] if len(members) == 1 else typing.Union[tuple(members)], len(members) < len(typing.get_args(hint))  # noqa: UP007


def is_mixed(hint: Any) -> bool:
    """Whether a list or a mapping is one of several types that a value may have.

    >>> is_mixed(str | list[str] | None), is_mixed(list[str] | None)
    (True, False)
    """
    inner, _ = without_none(hint)
    members = typing.get_args(inner) if typing.get_origin(inner) is typing.Union else ()
    return any(typing.get_origin(member) in (list, dict) for member in members)


def plain_class(cls: Any) -> type[Any]:
    """``cls`` with Any for mixed types and without methods; ``cls`` itself if it has no mixed type."""
    return _plain_class(cls)


@functools.cache
def _plain_class(cls: type[Any]) -> type[Any]:
    hints = typing.get_type_hints(cls)
    plain = {name: _plain_hint(hint) for name, hint in hints.items()}
    if all(plain[name] is hints[name] for name in hints):
        return cls
    fields = [(field.name, plain[field.name], _plain_field(field)) for field in dataclasses.fields(cls)]
    return dataclasses.make_dataclass(cls.__name__, fields, kw_only=True)


def _plain_hint(hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return plain_class(hint)
    if is_mixed(hint):
        return Any
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    changes = origin in (list, dict) and any(map(is_mixed, arguments))
    return origin[tuple(map(_plain_hint, arguments))] if changes else hint


def _plain_field(field: "dataclasses.Field[Any]") -> Any:
    given: Any = field.default_factory
    factory: Any = given if given is dataclasses.MISSING else lambda: _plain_value(given())
    return dataclasses.field(default=field.default, default_factory=factory)


def _plain_value(value: Any) -> Any:
    if not dataclasses.is_dataclass(value):
        return value
    names = [field.name for field in dataclasses.fields(value)]
    return plain_class(type(value))(**{name: _plain_value(getattr(value, name)) for name in names})


def declared(hint: Any, value: Any) -> Any:
    """``value``, an instance of a plain class, as the dataclass ``hint``, whose own checks run."""
    if not dataclasses.is_dataclass(hint) or isinstance(value, typing.cast(type[Any], hint)):
        return value
    hints = typing.get_type_hints(hint)
    names = [field.name for field in dataclasses.fields(hint)]
    return typing.cast(Any, hint)(**{name: declared(hints[name], getattr(value, name)) for name in names})
