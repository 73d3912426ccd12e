"""verl's defaults by version, and the values that a command of verl has in effect.

The tables ``defaults/fsdp.tsv`` and ``defaults/megatron.tsv`` are made by ``scripts/verl_defaults.py`` out of the YAML
of verl's wheels: a row is a key, a column is a version, a cell is JSON or empty.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from corerl_verl import hydra
from corerl_verl.keys import PREFIX

FOLDER = Path(__file__).parent / "defaults"
ENGINES = ("fsdp", "megatron")
REQUIRED = "???"
_INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,((?:[^{}]|\{[^{}]*\}|\$\{[^{}]*\})*))?\}")
_DEEPEST = 10
_MANDATORY = "actor_rollout_ref.rollout.name"


@cache
def _table(engine: str) -> dict[str, dict[str, Any]]:
    """version -> key -> default."""
    header, *lines = (FOLDER / f"{engine}.tsv").read_text().splitlines()
    versions = header.split("\t")[1:]
    found: dict[str, dict[str, Any]] = {version: {} for version in versions}
    for line in lines:
        key, *cells = line.split("\t")
        for version, cell in zip(versions, cells, strict=True):
            if cell:
                found[version][key] = json.loads(cell)
    return found


def versions() -> list[str]:
    """The known versions, oldest first."""
    return list(_table("fsdp"))


def defaults(version: str, engine: str) -> Mapping[str, Any]:
    """Key, with ``actor_rollout_ref.``, -> default; interpolations as text."""
    return _table(engine)[version]


def full(key: str, engine: str = "fsdp") -> str:
    """A key with its ``actor_rollout_ref.``.

    >>> full("rollout.n"), full("trainer.nnodes")
    ('actor_rollout_ref.rollout.n', 'trainer.nnodes')
    """
    return f"{PREFIX}{key}" if key.partition(".")[0] in ("actor", "ref", "rollout", "model") else key


def guess(keys: Iterable[str], engine: str) -> str:
    """The newest version that has the most of ``keys``, those of a command without ``+``.

    Since 0.6, ``rollout.name`` is required.
    """
    wanted = {full(key) for key in keys}
    best, fewest = versions()[-1], None
    for version in reversed(versions()):
        known = defaults(version, engine)
        if known.get(_MANDATORY) == REQUIRED and _MANDATORY not in wanted:
            continue
        missing = sum(not _has(key, known) for key in wanted)
        if fewest is None or missing < fewest:
            best, fewest = version, missing
    return best


def _has(key: str, known: Mapping[str, Any]) -> bool:
    return key in known or any(other.startswith(f"{key}.") for other in known)


class Effective:
    """The values of a command over the defaults of its version, with interpolations resolved."""

    def __init__(self, given: Mapping[str, Any], version: str, engine: str) -> None:
        self.version, self.engine = version, engine
        self._given = {full(key): value for key, value in given.items()}

    def __call__(self, key: str, default: Any = None) -> Any:
        """The value at a key, with or without ``actor_rollout_ref.``; ``default`` if missing, null or unresolvable."""
        value = self._value(full(key), 0)
        return default if value is None or value == REQUIRED else value

    def default(self, key: str) -> Any:
        """verl's default of a key; None if the version has no such key."""
        return defaults(self.version, self.engine).get(full(key))

    def forget(self, key: str) -> None:
        """Take the default of a given key again."""
        self._given.pop(full(key), None)

    def _value(self, key: str, depth: int) -> Any:
        value = self._given.get(key, defaults(self.version, self.engine).get(key))
        return self._resolved(value, key, depth) if isinstance(value, str) and "${" in value else value

    def _resolved(self, text: str, key: str, depth: int) -> Any:
        """``${key}``, ``${.sibling}`` and ``${oc.select:key,default}``, as whole values or within a text."""
        if depth > _DEEPEST:
            return None
        match = _INTERPOLATION.fullmatch(text)
        if not match:
            return _INTERPOLATION.sub(lambda each: str(self._resolved(each[0], key, depth + 1)), text)
        name = f"{key.rpartition('.')[0]}{match[1]}" if match[1].startswith(".") else match[1]
        value = self._value(name, depth + 1)
        if value is None and match[2] is not None:
            fallback = hydra.value(match[2].strip())
            return (
                self._resolved(fallback, key, depth + 1) if isinstance(fallback, str) and "${" in fallback else fallback
            )
        return value
