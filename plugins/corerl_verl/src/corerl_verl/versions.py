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
_INTERPOLATION = re.compile(r"\$\{(oc\.select:|oc\.env:)?\s*([\w.]+)\s*(?:,((?:[^{}]|\{[^{}]*\}|\$\{[^{}]*\})*))?\}")
_LONGEST = 10_000
"""characters of a resolved text"""
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

    def __init__(
        self, given: Mapping[str, Any], version: str, engine: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.version, self.engine = version, engine
        self._environment = environment or {}
        self._given = {full(key): value for key, value in given.items()}
        self._found: dict[str, Any] = {}  # of keys whose value has interpolations; None during the search, too

    def __call__(self, key: str, default: Any = None) -> Any:
        """The value at a key, with or without ``actor_rollout_ref.``; ``default`` if missing, null or unresolvable."""
        value = self._value(full(key))
        return default if value is None or value == REQUIRED else value

    def default(self, key: str) -> Any:
        """verl's default of a key; None if the version has no such key."""
        return defaults(self.version, self.engine).get(full(key))

    def is_default(self, key: str, value: Any) -> bool:
        """Whether verl has this value if the key is not given; null is none."""
        default = self.default(key)
        return value is not None and value in (default, self.resolved(key, default))

    def give(self, key: str, value: Any) -> None:
        """Take a value as if the command gave it."""
        self._given[full(key)] = value
        self._found.clear()

    def forget(self, key: str) -> None:
        """Take the default of a given key again."""
        self._given.pop(full(key), None)
        self._found.clear()

    def resolved(self, key: str, value: Any) -> Any:
        """A given value with its interpolations resolved; one that is not known stays as it is."""
        if isinstance(value, list):
            return [self.resolved(key, each) for each in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        result = self._resolved(value, full(key))
        return value if result is None or result == REQUIRED else result

    def _value(self, key: str) -> Any:
        value = self._given.get(key, defaults(self.version, self.engine).get(key))
        if not isinstance(value, str) or "${" not in value:
            return value
        if key not in self._found:
            self._found[key] = None
            self._found[key] = self._resolved(value, key)
        return self._found[key]

    def _resolved(self, text: str, key: str) -> Any:
        """``${key}``, ``${.sibling}``, ``${oc.select:key,default}`` and ``${oc.env:NAME,default}``, as whole values or
        within a text; None: not known.
        """
        match = _INTERPOLATION.fullmatch(text)
        if match:
            return self._one(match, key)
        pieces = {each[0]: self._one(each, key) for each in _INTERPOLATION.finditer(text)}
        if None in pieces.values():
            return None
        whole = _INTERPOLATION.sub(lambda each: str(pieces[each[0]]), text)
        return whole if len(whole) <= _LONGEST else None

    def _one(self, match: re.Match[str], key: str) -> Any:
        resolver, name, fallback = match.groups()
        if resolver == "oc.env:":
            value: Any = self._environment.get(name)
            value = value if value is None else hydra.value(value)
        else:
            section = key
            for _ in range(len(name) - len(name.lstrip("."))):
                section = section.rpartition(".")[0]
            value = self._value(f"{section}.{name.lstrip('.')}" if name.startswith(".") else name)
        if value is None and fallback is not None:
            other = hydra.value(fallback.strip())
            return self._resolved(other, key) if isinstance(other, str) and "${" in other else other
        return value
