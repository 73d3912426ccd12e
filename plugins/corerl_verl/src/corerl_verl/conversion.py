"""A conversion of verl's arguments under way."""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Conversion:
    """What is still to be converted, and what came of the rest.

    Attributes:
        given: verl's key, without ``actor_rollout_ref.``, -> value; a rule takes out what it converts.
        values: CoreRL's key -> value.
        reasons: what a remark says -> the arguments that it is about.
    """

    given: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is then done; ``default`` if it is not given, or null."""
        value = self.given.pop(key, None)
        return default if value is None else value

    def take_section(self, prefix: str) -> dict[str, Any]:
        """Name -> value of every key below ``prefix``, which are then done."""
        names = [key for key in self.given if key.startswith(f"{prefix}.")]
        return {key.removeprefix(f"{prefix}."): self.given.pop(key) for key in names}

    def remark(self, argument: str, reason: str) -> None:
        """Say something about ``key=value``; arguments with one reason share a line."""
        self.reasons.setdefault(reason, []).append(argument)

    @property
    def remarks(self) -> list[str]:
        """One sentence a line."""
        return [f"{', '.join(arguments)}: {reason}" for reason, arguments in self.reasons.items()]


def is_number(value: Any, most: float = math.inf) -> bool:
    """Whether it is a number, at most ``most``; a text or an interpolation is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= most


def is_true(value: Any) -> bool:
    """A truth value as Hydra has it, quoted or not."""
    return str(value).lower() == "true"
