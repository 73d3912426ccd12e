"""The state of a conversion of verl's arguments."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from corerl_verl.versions import Effective

Kind = Literal["changed", "missing", "unknown", "harmless"]
"""of a remark: another meaning; no counterpart in CoreRL; no key of verl and CoreRL; no effect on the result"""


class Remark(NamedTuple):
    """Arguments that lose or change their meaning, and why."""

    kind: Kind
    arguments: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(self.arguments)}: {self.reason}"


@dataclass
class Conversion:
    """The unconverted arguments, and the results so far.

    Attributes:
        given: verl's key, without ``actor_rollout_ref.``, -> value; a rule removes the keys that it converts.
        effective: the values in effect, with the defaults of verl.
        values: CoreRL's key -> value.
        reasons: kind and text of a remark -> its arguments.
        module: of verl, that the command starts.
    """

    given: dict[str, Any]
    effective: Effective
    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[tuple[Kind, str], list[str]] = field(default_factory=dict)
    module: str = "verl.trainer.main_ppo"

    def take(self, key: str, default: Any = None) -> Any:
        """Remove a key and return its value; ``default`` if it is missing or null."""
        value = self.given.pop(key, None)
        return default if value is None else value

    def put(self, key: str, value: Any) -> None:
        """Give a key, as if the command had."""
        self.given[key] = value
        self.effective.give(key, value)

    def take_section(self, prefix: str) -> dict[str, Any]:
        """Remove every key below ``prefix``; returns name -> value."""
        names = [key for key in self.given if key.startswith(f"{prefix}.")]
        return {key.removeprefix(f"{prefix}."): self.given.pop(key) for key in names}

    def remark(self, argument: str, reason: str, kind: Kind = "changed") -> None:
        """Add a remark about ``key=value``; arguments with the same reason share a line."""
        found = self.reasons.setdefault((kind, reason), [])
        if argument not in found:
            found.append(argument)

    def drop(self, key: str, reason: str, kind: Kind = "harmless") -> None:
        """Leave out a given key; a value that verl has without the argument, too, loses nothing."""
        if key not in self.given:
            return
        value = self.given.pop(key)
        if kind in ("missing", "unknown") and self.effective.is_default(key, value):
            kind, reason = "harmless", "verl's default, as if it were not given"
        self.remark(shown(key, value), reason, kind)

    def drop_section(self, prefix: str, reason: str, kind: Kind = "harmless") -> None:
        """Leave out every given key below ``prefix``."""
        for key in [key for key in self.given if key.startswith(f"{prefix}.")]:
            self.drop(key, reason, kind)

    @property
    def remarks(self) -> list[Remark]:
        """The remarks, in the order of their kinds."""
        order = ("changed", "missing", "unknown", "harmless")
        found = [Remark(kind, tuple(arguments), reason) for (kind, reason), arguments in self.reasons.items()]
        return sorted(found, key=lambda remark: order.index(remark.kind))

    @property
    def has_critic(self) -> bool:
        """Whether verl trains a critic."""
        enabled = self.effective("critic.enable")
        return is_true(enabled) if enabled is not None else str(self.effective("algorithm.adv_estimator")) == "gae"

    @property
    def trainer_v1(self) -> bool:
        """Whether verl's trainer v1 runs, which in bypass mode keeps the loss and neither weighs nor rejects."""
        if "main_ppo_sync" in self.module:
            return True
        newest = float(self.effective.version) >= 0.9 and self.module.endswith("main_ppo")
        return newest and is_true(self.effective("trainer.use_v1", False))

    @property
    def gpus(self) -> int | None:
        """GPUs of training; None if their number is not known."""
        nodes, each = self.effective("trainer.nnodes", 1), self.effective("trainer.n_gpus_per_node", 8)
        return nodes * each if is_number(nodes) and is_number(each) else None


def shown(key: str, value: Any) -> str:
    """``key=value`` with a value of at most 60 characters.

    >>> shown("a", None), shown("b", {"c": True})
    ('a=null', 'b={c: True}')
    """
    if value is None:
        return f"{key}=null"
    text = str(value) if not isinstance(value, Mapping) else str(dict(value)).replace("'", "")
    return f"{key}={text if len(text) <= 60 else text[:59] + '…'}"


def is_number(value: Any, most: float = math.inf) -> bool:
    """Whether ``value`` is a number of at most ``most``; a text or an interpolation is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= most


def is_true(value: Any) -> bool:
    """A truth value in Hydra's form, quoted or not."""
    return str(value).lower() == "true"
