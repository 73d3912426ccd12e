"""Options: dataclass fields with help and range."""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from corerl.errors import ConfigError

Part = str | dict[str, Any]
"""the value of a key that selects a part: its name, or a mapping with ``name`` and its options"""

_BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "greater than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


LARGEST = 2**32 - 1
"""of an integer without a bound of its own"""


def selects_part(hint: Any) -> bool:
    """Whether a type is that of a key that selects a part, or null."""
    return bool(hint in (Part, Part | None))


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    factory: Any = dataclasses.MISSING,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declare one option of a config dataclass.

    Args:
        default: the value when the user gives none; leave it out for a required option.
        help: one phrase for ``corerl plugins show`` and ``corerl config show``.
        factory: makes the default, for lists, dicts and nested dataclasses.
        ge, gt, le, lt: the range that a number must be in; infinity is out of range unless ``le`` is ``math.inf``, an
            integer above :data:`LARGEST` unless there is ``le`` or ``lt``.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class ClipOptions:
    ...     clip_ratio: float = option(0.2, "width of the clip range", gt=0)
    """
    bounds = {name: bound for name, bound in (("ge", ge), ("gt", gt), ("le", le), ("lt", lt)) if bound is not None}
    metadata = {"help": help, "bounds": bounds}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@runtime_checkable
class CompositeOptions(Protocol):
    """Options that name further entries of their kind, such as a scorer made of scorers."""

    def resolve(self, select: Callable[[Any, str], Any], key: str) -> None:
        """Select them by ``select`` (:meth:`corerl.registry.Registry.select`); ``key`` is that of these options."""
        ...


def check_ranges(instance: Any, path: str) -> None:
    """Raise ConfigError for the first number outside its range in a dataclass, nested ones included."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        key = f"{path}.{field.name}" if path else field.name
        if dataclasses.is_dataclass(value):
            check_ranges(value, key)
        elif isinstance(value, dict):
            for name, each in value.items():
                if dataclasses.is_dataclass(each):
                    check_ranges(each, f"{key}.{name}")
        elif isinstance(value, list | tuple) and any(each != each or each in (math.inf, -math.inf) for each in value):
            raise ConfigError(key, f"must have finite numbers only, not {value}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            bounds = field.metadata.get("bounds", {})
            if isinstance(value, int) and not bounds.keys() & {"le", "lt"}:
                bounds = {**bounds, "le": LARGEST}
            for bound_name, bound in bounds.items():
                holds, words = _BOUNDS[bound_name]
                if not holds(value, bound):
                    raise ConfigError(key, f"must be {words} {bound}, not {value}")
            if value != value or (abs(value) == math.inf and bounds.get("le") != math.inf):
                raise ConfigError(key, f"must be a finite number, not {value}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A phrase naming the nearest known word, or '' when none is near.

    >>> did_you_mean("grop", ["grpo", "gae"])
    " (did you mean 'grpo'?)"
    """
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""
