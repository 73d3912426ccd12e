"""A preset beneath a config file and overrides."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corerl.config.load import read
from corerl.contracts.config import TrainConfig
from corerl.registry.parts import SHORTHANDS


def read_over_preset(preset: Mapping[str, Any], file: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The values of file and overrides on top of the preset's.

    Where they select another part than the preset does, its options of that part are forgotten, also those that it
    writes beside the part: the clip widths of PPO are not those of GSPO.
    """
    own = read(TrainConfig, file, overrides)
    values = read(TrainConfig, file, overrides, preset)
    for key, (section, names) in SHORTHANDS.items():
        chosen, theirs = _name(_at(own, key)), _name(_at(preset, key))
        if chosen is not None and theirs is not None and chosen != theirs:
            for name in names:
                if name not in (_at(own, section) or {}):
                    (_at(values, section) or {}).pop(name, None)
    return values


def _name(selected: Any) -> Any:
    return selected.get("name") if isinstance(selected, Mapping) else selected


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
