"""The state of a conversion of verl's arguments."""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Conversion:
    """The unconverted arguments, and the results so far.

    Attributes:
        given: verl's key, without ``actor_rollout_ref.``, -> value; a rule removes the keys that it converts.
        values: CoreRL's key -> value.
        reasons: text of a remark -> its arguments.
    """

    given: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)

    def take(self, key: str, default: Any = None) -> Any:
        """Remove a key and return its value; ``default`` if it is missing or null."""
        value = self.given.pop(key, None)
        return default if value is None else value

    def take_section(self, prefix: str) -> dict[str, Any]:
        """Remove every key below ``prefix``; returns name -> value."""
        names = [key for key in self.given if key.startswith(f"{prefix}.")]
        return {key.removeprefix(f"{prefix}."): self.given.pop(key) for key in names}

    def remark(self, argument: str, reason: str) -> None:
        """Add a remark about ``key=value``; arguments with the same reason share a line."""
        self.reasons.setdefault(reason, []).append(argument)

    @property
    def remarks(self) -> list[str]:
        """The remarks, one sentence each."""
        return [f"{', '.join(arguments)}: {reason}" for reason, arguments in self.reasons.items()]


def is_number(value: Any, most: float = math.inf) -> bool:
    """Whether ``value`` is a number of at most ``most``; a text or an interpolation is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= most


def is_true(value: Any) -> bool:
    """A truth value in Hydra's form, quoted or not."""
    return str(value).lower() == "true"
