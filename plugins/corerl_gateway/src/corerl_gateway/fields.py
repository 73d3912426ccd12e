"""Reading of JSON from clients: every field is checked, and errors name its path."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from corerl_gateway.errors import ApiError, invalid, unsupported

LARGEST = 1e300
"""number"""
MOST_TOP_K = 2**31 - 1
"""engines hold it in 32 bits"""
PLACES = re.compile(r"\[\d+\]")
DEPTH = 64
"""largest number of brackets within each other"""


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        ApiError: 400: it is none, is too deep, or has half a character or a number that JSON lacks.
    """
    try:
        value = json.loads(body, parse_constant=_no_constant)
        if b"\\ud" in body or b"\\uD" in body:
            json.dumps(value, ensure_ascii=False).encode()  # an escape may be half a character
    except RecursionError:
        raise _too_deep() from None
    except UnicodeEncodeError:
        raise ApiError(400, "the body has half a character: a surrogate without its other one") from None
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    _check_depth(value)
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _too_deep() -> ApiError:
    return ApiError(400, f"the body has more than {DEPTH} brackets within each other")


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
        if not level:
            return
    raise _too_deep()


class Fields:
    """An object of a request. A field that is null is as one that is left out.

    Args:
        path: of the object, for errors; '' for the body.

    All methods raise ApiError, 400, for a field of another type.
    """

    def __init__(self, values: Any, path: str = "") -> None:
        if not isinstance(values, dict):
            raise invalid(path or "body", "an object")
        self._values: Mapping[str, Any] = values
        self._path = path
        self._read: set[str] = set()
        self._objects: dict[str, list[Fields]] = {}
        self._is_whole = False

    @property
    def values(self) -> Mapping[str, Any]:
        """The whole object, unchecked."""
        self._is_whole = True
        return self._values

    def unread(self) -> Iterator[tuple[str, Any]]:
        """(path without places in lists, value) of each field that nobody has read."""
        for name, value in self._values.items():
            if not self._is_whole and name not in self._read and value is not None:
                yield PLACES.sub("[]", self.path(name)), value
        for each in itertools.chain.from_iterable(self._objects.values()):
            yield from each.unread()

    def path(self, name: str) -> str:
        """The path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        """The value, unchecked."""
        self._read.add(name)
        return self._values.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without a default it is required."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise invalid(self.path(name), "a text")
        return value

    def flag(self, name: str) -> bool:
        """A bool; false if it is left out."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(self.path(name), "true or false")
        return bool(value)

    def whole(self, name: str, least: int, most: int | None = None) -> int | None:
        """A whole number; None if it is left out."""
        value = self.get(name)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < least
            or (most is not None and value > most)
        ):
            limit = f"{least} or more" if most is None else f"{least} to {most}"
            raise invalid(self.path(name), f"a whole number, {limit}")
        return int(value)

    def number(self, name: str, least: float = -LARGEST, most: float = LARGEST) -> float | None:
        """A finite number; None if it is left out."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise invalid(self.path(name), f"a number from {least:g} to {most:g}")
        return float(value)

    def inner(self, name: str) -> "Fields | None":
        """An object; None if it is left out."""
        value = self.get(name)
        if value is not None and name not in self._objects:
            self._objects[name] = [Fields(value, self.path(name))]
        return self._objects[name][0] if value is not None else None

    def items(self, name: str) -> "Iterator[Fields]":
        """The objects of a list; none if it is left out."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise invalid(self.path(name), "a list")
        if name not in self._objects:
            self._objects[name] = [
                Fields(item, f"{self.path(name)}[{place}]") for place, item in enumerate(value or ())
            ]
        return iter(self._objects[name])

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, or one text; none if it is left out."""
        value = self.get(name)
        found = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
            raise invalid(self.path(name), "a text or a list of texts, none of them empty")
        return tuple(found)

    def refuse(self, name: str, remedy: str, *harmless: Any) -> None:
        """Raise ApiError if a field that the endpoint cannot honour has another value than the harmless ones."""
        value = self.get(name)
        if value is not None and value not in harmless:
            raise unsupported(self.path(name), remedy)
