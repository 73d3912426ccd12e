"""For an unknown key: the known keys that are near."""

import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping
from typing import Any


def dotted_keys(cls: type[Any], path: str = "") -> list[str]:
    """Every key of a dataclass, nested ones included, in order: ``model``, ``model.path``, …"""
    keys = []
    for name, hint in typing.get_type_hints(cls).items():
        key = f"{path}.{name}" if path else name
        keys.append(key)
        if dataclasses.is_dataclass(hint):
            keys += dotted_keys(typing.cast(type[Any], hint), key)
    return keys


def unknown(
    key: str, value: Any, known: list[str], explain: Callable[[str], str | None] | None = None
) -> tuple[str, str]:
    """The key and the message of the error for ``key`` with ``value``, which is not among ``known``.

    Args:
        explain: gives a plugin's remedy for a key, or None.
    """
    while isinstance(value, Mapping) and value:  # a section that does not exist: speak of the first key in it
        name, value = next(iter(value.items()))
        key = f"{key}.{name}"
    return key, f"unknown key; {(explain(key) if explain else None) or remedy(key, known)}"


def remedy(key: str, known: list[str]) -> str:
    """The nearest keys of an unknown one, else those of its section."""
    near = nearest(key, known)
    if near:
        return f"did you mean {' or '.join(near)}?"
    section = key.rpartition(".")[0]
    while section and not _below(section, known):
        section = section.rpartition(".")[0]
    return f"the keys {f'of {section} ' if section else ''}are {', '.join(_below(section, known))}"


def nearest(key: str, known: list[str]) -> list[str]:
    """At most three keys, best first: of the same name elsewhere, else of a similar name.

    >>> nearest("data.lr", ["data", "data.seed", "actor.optim.lr"])
    ['actor.optim.lr']
    >>> nearest("actor.rollout_n", ["actor.strategy", "rollout.n"])
    ['rollout.n']
    """
    section, _, leaf = key.rpartition(".")
    parts = key.split(".")
    for tail in (".".join(parts[start:]) for start in range(len(parts))):
        same = [other for other in known if other == tail or other.endswith(f".{tail}")]
        same = same or [other for other in known if other.replace(".", "_") == tail.replace(".", "_")]
        if same:
            return ([other for other in same if other.partition(".")[0] == parts[0]] or same)[:3]
    siblings = _below(section, known)
    close = difflib.get_close_matches(leaf, siblings, n=2, cutoff=0.6)
    if close:
        return [f"{section}.{name}" if section else name for name in close]
    leaves = {other.rpartition(".")[2]: other for other in reversed(known)}
    return [leaves[name] for name in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.75)]


def _below(section: str, known: list[str]) -> list[str]:
    """The names directly in a section."""
    return [leaf for parent, _, leaf in (other.rpartition(".") for other in known) if parent == section]
