"""A preset beneath a config file and overrides."""

import copy
import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corerl.config.aliases import MISSING, at, canonical, renamed, take
from corerl.config.load import assign, read
from corerl.contracts.config import TrainConfig
from corerl.contracts.options import selects_part


def read_over_preset(
    preset: Mapping[str, Any], file: Path | None, overrides: Sequence[str], aliases: Mapping[str, str]
) -> dict[str, Any]:
    """The values of file and overrides on top of the preset's, without aliases.

    If they select another part than the preset does, its options of that part are forgotten: the clip widths of PPO are
    not those of GSPO. If they name the same part, its options stay.

    Raises:
        ConfigError: as for :func:`corerl.config.load.read` and :func:`corerl.config.aliases.canonical`.
    """
    own = read(TrainConfig, file, overrides)
    given = canonical(TrainConfig, own, aliases)
    beneath = canonical(TrainConfig, preset, aliases)
    values: dict[str, Any] = renamed(read(TrainConfig, file, overrides, beneath), aliases)
    for key in part_keys(TrainConfig):
        chosen, theirs = at(values, key), at(beneath, key)
        if MISSING in (chosen, theirs) or None in (chosen, theirs):
            continue
        if _name(chosen) != _name(theirs):
            assign(TrainConfig, values, key.split("."), copy.deepcopy(at(own, key)))
        elif isinstance(chosen, str):
            assign(TrainConfig, values, key.split("."), copy.deepcopy(theirs))
    for alias, key in aliases.items():
        value = take(values, alias)
        if value is None and at(given, key) is MISSING:
            take(values, key)  # the preset's option is set back to the default of the part
        elif value is not MISSING and value is not None:
            assign(TrainConfig, values, key.split("."), value)
    return values


def part_keys(cls: type[Any], path: str = "") -> Iterator[str]:
    """The dotted keys of a config that select a part."""
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            yield from part_keys(typing.cast(type[Any], hint), f"{path}{name}.")
        elif selects_part(hint):
            yield f"{path}{name}"


def _name(selected: Any) -> Any:
    return selected.get("name") if isinstance(selected, Mapping) else selected
