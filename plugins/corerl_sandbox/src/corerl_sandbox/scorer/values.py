"""Values of a program that crossed the border of its process, and constructors of values to compare them with."""

import datetime
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    f"{module}{kind.__name__}": kind
    for name, kinds in {
        "fractions": (Fraction,),
        "decimal": (Decimal,),
        "datetime": (datetime.date, datetime.time, datetime.datetime, datetime.timedelta),
        "collections": (deque, Counter, OrderedDict),
    }.items()
    for kind in kinds
    for module in ("", f"{name}.")
}
"""called here if all arguments are literals, because the program could replace the class"""
LARGEST_EXPONENT = 10_000
MOST_COLLISIONS = 64
LONGEST_RANGE = 1_000_000


def distinct(values: Iterable[Any]) -> list[Any]:
    """The values, for a set or a dict.

    Raises:
        ValueError: too many values have the same hash: building the set would take quadratic time.
    """
    values = list(values)
    if len(values) > MOST_COLLISIONS * len({hash(value) for value in values}):
        raise ValueError("too many values with one hash")
    return values


def _short(values: range) -> range:
    if len(values) > LONGEST_RANGE:
        raise ValueError("a range whose list would fill the memory")
    return values


TYPES: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": lambda values: set(distinct(values)),
    "frozenset": lambda values: frozenset(distinct(values)),
    "iterator": iter,
    "range": lambda bounds: _short(range(*bounds)),
    "bytes": bytes,
    "complex": lambda parts: complex(*parts),
    "deque": deque,
    "Fraction": lambda parts: Fraction(*parts),
    "Decimal": lambda parts: _decimal(*parts),
    "datetime": lambda parts: datetime.datetime.fromisoformat(*parts),
    "date": lambda parts: datetime.date.fromisoformat(*parts),
    "time": lambda parts: datetime.time.fromisoformat(*parts),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "record": lambda parts: _Record(parts[0], parts[1:]),
}


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if value.is_finite() and value and abs(value.adjusted()) > LARGEST_EXPONENT:
        raise ValueError("a number whose digits would fill the memory")
    return value


@dataclass(frozen=True)
class _Record:
    """A dataclass, or a member of an Enum: the name of its class and its values."""

    name: str
    values: list[Any]

    def __hash__(self) -> int:
        return hash((self.name, repr(self.values)))


def decoded(value: Any) -> Any:
    """Decode the output of :func:`corerl_sandbox.scorer.code_child.plain`.

    Raises:
        TypeError, ValueError, RecursionError: the value has another form.
    """
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise TypeError("a list without a type")
        return value
    [(kind, parts)] = value.items()
    if kind == "dict":
        pairs = [(decoded(key), decoded(each)) for key, each in parts]
        distinct(key for key, _ in pairs)
        return dict(pairs)
    if kind not in TYPES:
        raise TypeError(f"no type {kind!r:.40}")
    return TYPES[kind]([decoded(each) for each in parts])
