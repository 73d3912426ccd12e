"""Registry, Entry and Selected: a name in a config becomes an object, and only when it is used."""

import dataclasses
import functools
import importlib
import inspect
import json
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from corerl.errors import ConfigError, NameClashError, PluginError, UnknownNameError
from corerl.options import did_you_mean
from corerl.registry import modules

T = TypeVar("T")

NEEDS = ("needs_critic", "needs_greedy_baseline", "needs_groups", "needs_logits", "needs_ref")


@dataclasses.dataclass(frozen=True)
class Owner:
    """Who registered an entry: a distribution and its version, or a file and ''."""

    distribution: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".rstrip()


@dataclasses.dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered name.

    Attributes:
        kind: the registry's kind, in words ("advantage estimator").
        name: what a config writes.
        target: the object, or ``"module:attribute"``, imported by :meth:`load`.
        owner: who registered it.
        summary: one line for ``corerl plugins list``.
        options: the dataclass that the entry's options are checked against, or None when it has none.
        data_sources: for scorers, the ``data_source`` values that select this one by themselves.
        needs_critic: the run must have a value model.
        needs_greedy_baseline: the run must score a greedy response to every prompt.
        needs_groups: several responses to one prompt are compared (``rollout.n`` of at least 2).
        needs_logits: the function takes logits where the others take log-probs.
        needs_ref: the run must have reference log-probs.
    """

    kind: str
    name: str
    target: T | str
    owner: Owner
    summary: str = ""
    options: type | None = None
    data_sources: tuple[str, ...] = ()
    needs_critic: bool = False
    needs_greedy_baseline: bool = False
    needs_groups: bool = False
    needs_logits: bool = False
    needs_ref: bool = False

    def load(self) -> T:
        """Import the target.

        Raises:
            PluginError: it cannot be imported; the message names the owner and the cause.
        """
        if not isinstance(self.target, str):
            return self.target
        try:
            return typing.cast(T, modules.load_object(self.target))
        except Exception as error:
            raise PluginError(
                f"{self.kind} '{self.name}' of {self.owner} cannot be imported from {self.target}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def source(self) -> tuple[str, int]:
        """The file and line that define the target.

        Raises:
            PluginError: the target cannot be imported.
        """
        target = inspect.unwrap(typing.cast(Callable[..., Any], self.load()))
        target = getattr(target, "callback", target)  # a click command
        return inspect.getsourcefile(target) or "<unknown>", inspect.getsourcelines(target)[1]


@dataclasses.dataclass(frozen=True)
class Selected(Generic[T]):
    """An entry together with the options that a config gives it."""

    entry: Entry[T]
    options: Any = None

    def load(self) -> T:
        """Import the target; where the entry has options they are bound as the keyword ``options``."""
        target = self.entry.load()
        if self.options is None:
            return target
        return typing.cast(T, functools.partial(typing.cast(Callable[..., Any], target), options=self.options))


class Registry(Generic[T]):
    """The named implementations of one kind.

    Args:
        kind: what is registered, in words and in the singular, e.g. ``"advantage estimator"``.
        contract: the Protocol that every target satisfies; its docstring is the kind's documentation.
        config_key: where a config selects one, for error messages ('' when no config does).
    """

    def __init__(self, kind: str, contract: type, config_key: str = "") -> None:
        self.kind = kind
        self.contract = contract
        self.config_key = config_key
        self._entries: dict[str, Entry[T]] = {}
        self._clashes: dict[str, str] = {}
        self.missing_hint: Callable[[str, str], str] = lambda kind, name: ""

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def add(self, entry: Entry[T], *, override: bool = False) -> None:
        """Add an entry.

        Raises:
            NameClashError: the name is taken and ``override`` is false.
        """
        present = self._entries.get(entry.name)
        if present is not None and not override:
            message = (
                f"{self.kind} '{entry.name}' is registered by {present.owner} and by {entry.owner}: disable one of "
                "them (plugins.disable), or let one register it with override=True"
            )
            self._clashes[entry.name] = message
            raise NameClashError(message)
        self._entries[entry.name] = entry

    def get(self, name: str) -> Entry[T]:
        """The entry that a config means by ``name``: a registered name, ``package.module:attribute`` or ``./file.py:attribute``.

        Raises:
            UnknownNameError: nobody registered it; the message names the nearest name or the package to install.
            NameClashError: two plugins registered it.
            PluginError: a ``module:attribute`` that cannot be imported.
        """
        if name in self._clashes:
            raise NameClashError(self._clashes[name])
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return self._ad_hoc(name)
        known = ", ".join(sorted(self._entries)) or "none: no installed plugin registers any"
        hint = self.missing_hint(self.kind, name) or did_you_mean(name, self._entries)
        raise UnknownNameError(f"unknown {self.kind} '{name}'{hint}; known: {known}")

    def select(self, value: Any, key: str = "") -> Selected[T]:
        """What a config's ``name`` or ``{name: …, option: …}`` selects, its options checked and filled in.

        Raises:
            ConfigError: no name, an unknown option, a wrong type or a value out of range; ``key`` is in the message.
        """
        from corerl.config import typed

        key = key or self.config_key
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ConfigError(key, f"must be the name of a {self.kind}, or a mapping with 'name' and its options")
        try:
            entry = self.get(value["name"])
        except UnknownNameError as error:
            raise UnknownNameError(f"{key}: {error}") from None
        given = {name: option for name, option in value.items() if name != "name"}
        if entry.options is None:
            if given:
                raise ConfigError(f"{key}.{next(iter(given))}", f"{self.kind} '{entry.name}' has no options")
            return Selected(entry)
        return Selected(entry, typed.build(entry.options, given, key))

    def _ad_hoc(self, name: str) -> Entry[T]:
        """An entry for an object named directly; its options are the annotation of its ``options`` parameter."""
        path = name.rpartition(":")[0]
        entry: Entry[T] = Entry(self.kind, name, name, Owner(path))
        target = entry.load()
        function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        options = typing.get_type_hints(function).get("options") if callable(function) else None
        return dataclasses.replace(entry, options=options)


KNOWN_NAMES = Path(__file__).parent / "known_names.json"


def distribution_of(kind: str, name: str) -> str | None:
    """The CoreRL distribution known to register ``name``, installed or not.

    ``known_names.json`` is generated from ``plugins/`` by ``make known-names``; a test checks that it is current.
    """
    table: dict[str, dict[str, str]] = json.loads(KNOWN_NAMES.read_text())
    return table.get(kind, {}).get(name)
