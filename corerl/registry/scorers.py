"""The scorer of a data source, and a scorer's arguments."""

import dataclasses
import inspect
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from corerl.contracts.scorers import ARGUMENTS, Scorer, TimedOptions
from corerl.errors import PluginError
from corerl.registry.coroutines import blocking

if TYPE_CHECKING:
    from corerl.registry.base import Entry, Selected


def table_of_sources(entries: "Iterable[Entry[Scorer]]") -> "dict[str, list[Entry[Scorer]]]":
    """Data source, or pattern such as ``aime*`` -> its registered scorers; more than one is a clash."""
    table: dict[str, list[Entry[Scorer]]] = {}
    for entry in entries:
        for source in entry.facts.data_sources:
            table.setdefault(source, []).append(entry)
    return table


def keys_for(source: str, keys: Iterable[str]) -> list[str]:
    """The keys of a table for a data source: its own name, else the patterns that it fits.

    >>> keys_for("aime24", ["aime24", "aime*"]), keys_for("aime25", ["aime24", "aime*"])
    (['aime24'], ['aime*'])
    """
    keys = list(keys)
    return [source] if source in keys else [key for key in keys if fnmatchcase(source, key)]


def timed(selected: "Selected[Scorer]", timeout: float) -> "Selected[Scorer]":
    """``selected`` with its options under ``reward.timeout``; errors as for :meth:`TimedOptions.within`."""
    if not isinstance(selected.options, TimedOptions):
        return selected
    return dataclasses.replace(selected, options=selected.options.within(timeout))


def load_scorer(selected: "Selected[Scorer]", timeout: float) -> Scorer:
    """The selected scorer, for scores of at most ``timeout`` seconds.

    Raises:
        ConfigError: the scorer cannot keep the promise of its options on this machine.
        PluginError: the import failed, or the four arguments have other names or another order: (data_source,
            solution_str, …) would compare the wrong texts.
    """
    scorer = timed(selected, timeout).load()
    try:
        signature = inspect.signature(scorer.func if isinstance(scorer, blocking) else scorer)
    except ValueError:  # built into the interpreter, without a signature
        return scorer
    misplaced = [name for name, place in zip(signature.parameters, ARGUMENTS, strict=False) if name != place]
    if not set(misplaced) & set(ARGUMENTS):
        return scorer
    taken = ", ".join(name for name in signature.parameters if name != "options")
    raise PluginError(f"scorer '{selected.entry.name}' takes ({taken}), and is called with ({', '.join(ARGUMENTS)})")
