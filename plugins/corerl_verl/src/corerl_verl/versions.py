"""verl's defaults by version, and the values that a command of verl has in effect.

The tables ``defaults/fsdp.tsv`` and ``defaults/megatron.tsv`` are made by ``scripts/verl_defaults.py`` out of the YAML
of verl's wheels: a row is a key, a column is a version, a cell is JSON or empty.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl_verl.keys import PREFIX

FOLDER = Path(__file__).parent / "defaults"
ENGINES = ("fsdp", "megatron")
REQUIRED = "???"
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
    """The newest version that has the most of ``keys``, those without ``+``, of a command; since 0.6 ``rollout.name`` is
    required."""
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
        self.given = dict(given)

    @cached_property
    def _tree(self) -> Any:
        tree = OmegaConf.create({})
        known = dict(defaults(self.version, self.engine))
        for key, value in [*known.items(), *((full(key), value) for key, value in self.given.items())]:
            try:
                OmegaConf.update(tree, key, value, merge=False, force_add=True)
            except (OmegaConfBaseException, ValueError, TypeError):  # below a value
                continue
        return tree

    def __call__(self, key: str, default: Any = None) -> Any:
        """The value at a key, with or without ``actor_rollout_ref.``; ``default`` if missing, null or unresolvable."""
        try:
            value = OmegaConf.select(self._tree, full(key), default=None, throw_on_missing=False)
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException:
            return default
        return default if value is None or value == REQUIRED else value

    def default(self, key: str) -> Any:
        """verl's default of a key; None if the version has no such key."""
        return defaults(self.version, self.engine).get(full(key))

    def forget(self, key: str) -> None:
        """Take the default of a given key again."""
        self.given.pop(key, None)
        self.__dict__.pop("_tree", None)
