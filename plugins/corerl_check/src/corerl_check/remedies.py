"""The remedy for a finding without a known problem: the type, range, default and help of its key."""

import dataclasses
import typing
from typing import Any

from corerl.contracts.config import TrainConfig
from corerl.contracts.options import selects_part

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def of_key(key: str) -> str:
    """One sentence about a dotted key of a training config; '' for no key.

    >>> of_key("actor.grad_clip")
    'actor.grad_clip takes float, > 0, default 1.0: largest gradient norm.'
    >>> of_key("actor.policy_loss.clip_ratio")
    '`corerl plugins list` has the names for actor.policy_loss, `corerl plugins show NAME` the options of each.'
    """
    cls: Any = TrainConfig
    parts = key.split(".")
    for depth, name in enumerate(parts, start=1):
        field = next((each for each in dataclasses.fields(cls) if each.name == name), None)
        if field is None:
            return ""
        hint, place = typing.get_type_hints(cls)[name], ".".join(parts[:depth])
        if selects_part(hint):
            return f"`corerl plugins list` has the names for {place}, `corerl plugins show NAME` the options of each."
        if dataclasses.is_dataclass(hint):
            cls = hint
        elif depth < len(parts):
            return f"`corerl plugins show NAME` lists the options in {place}."
        else:
            return f"{place} takes {_label(hint, field)}: {field.metadata.get('help', '')}."
    return f"`corerl config show` prints the keys of {key}."


def _label(hint: Any, field: "dataclasses.Field[Any]") -> str:
    label = "|".join(map(str, typing.get_args(hint))) if typing.get_origin(hint) is typing.Literal else ""
    label = label or (
        hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")
    )
    bounds = ", ".join(f"{_BOUNDS[name]} {bound}" for name, bound in field.metadata.get("bounds", {}).items())
    default = (
        f"default {field.default}" if field.default is not dataclasses.MISSING and field.default is not None else ""
    )
    return ", ".join(part for part in (label, bounds, default) if part)
