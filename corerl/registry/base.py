"""Registry, Entry and Selected: a name in a config becomes an object at its first use."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from corerl.contracts.kinds import NoFacts, code_facts
from corerl.contracts.options import CompositeOptions, did_you_mean
from corerl.errors import ConfigError, NameClashError, PluginError, UnknownNameError, UntrustedError
from corerl.registry import coroutines, modules

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Owner:
    """The distribution and version of an entry, or a file and ''."""

    distribution: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".rstrip()


@dataclasses.dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered name.

    Attributes:
        kind: the registry's kind, in words ("advantage estimator").
        name: value in a config.
        target: the object, or ``"module:attribute"``, imported by :meth:`load`.
        summary: one line for ``corerl plugins list``.
        options: dataclass of the entry's options, or ``"module:attribute"``; None without options.
        needs: inputs or conditions of the run, from those of the kind.
        facts: an instance of the kind's dataclass of facts.
    """

    kind: str
    name: str
    target: T | str
    owner: Owner
    summary: str = ""
    options: type | str | None = None
    needs: frozenset[str] = frozenset()
    facts: Any = NoFacts()

    def load(self) -> T:
        """Import the target.

        Raises:
            PluginError: the import failed; the message has the owner and the cause.
        """
        return typing.cast(T, self._import(self.target))

    def load_options(self) -> type | None:
        """Import ``options``; None without options.

        Raises:
            PluginError: as for :meth:`load`, or ``options`` is no dataclass.
        """
        options = None if self.options is None else self._import(self.options)
        if options is not None and not (isinstance(options, type) and dataclasses.is_dataclass(options)):
            raise PluginError(f"the {self.kind} '{self.name}' must have a dataclass as its options, not {options!r}")
        return options

    def option_fields(self) -> tuple[dataclasses.Field[Any], ...]:
        """The fields of :meth:`load_options`, which may raise PluginError."""
        options: Any = self.load_options()
        return () if options is None else dataclasses.fields(options)

    def load_fact(self, name: str) -> Any:
        """Import a fact that is code, or None; errors as for :meth:`load`."""
        return self._import(getattr(self.facts, name))

    def load_all(self) -> None:
        """Import the target, the options and every fact that is code; errors as for :meth:`load`."""
        self.load()
        self.load_options()
        for fact in code_facts(self.facts):
            self.load_fact(fact.name)

    def _import(self, target: Any) -> Any:
        if not isinstance(target, str):
            return target
        if target == self.name:
            modules.require_trust(target, self.kind)
        try:
            return modules.load_object(target)
        except (Exception, SystemExit) as error:
            whence = "" if target == self.name else f" of {self.owner} cannot be imported from {target}"
            raise PluginError(
                f"{self.kind} '{self.name}'{whence or ' cannot be imported'}: {modules.one_line(error)}"
            ) from error


@dataclasses.dataclass(frozen=True)
class Selected(Generic[T]):
    """An entry with the options of a config; ``contract`` as of its registry, None for a target without a check."""

    entry: Entry[T]
    options: Any = None
    contract: type | str | None = None

    def load(self) -> T:
        """Import the target, and bind options as the keyword ``options``.

        The result for an ``async`` function is called without ``await`` (:mod:`corerl.registry.coroutines`).

        Raises:
            PluginError: the import failed, or the target does not take the arguments of its contract.
        """
        target = self.entry.load()
        self._check_call(target)
        return typing.cast(T, self._bind(target))

    def load_fact(self, name: str) -> Any:
        """Import a fact that is code, with the same options; None without the fact."""
        code = self.entry.load_fact(name)
        return None if code is None else self._bind(code)

    def _check_call(self, target: Any) -> None:
        name = f"{self.entry.kind} '{self.entry.name}'"
        if not callable(target):
            raise PluginError(f"{name} is {target!r}, and must be a function or a class")
        contract = loaded(self.contract) or object
        method = vars(contract).get("__call__")
        if method and coroutines.is_async(target):  # it may be what the contract's call makes, such as an agent
            made = getattr(inspect.signature(method).return_annotation, "__dict__", {})
            method = next(filter(inspect.iscoroutinefunction, made.values()), method)
        try:
            taken = inspect.signature(target)
        except ValueError:  # built into the interpreter, without a signature
            return
        given = list(inspect.signature(method).parameters.values())[1:] if method else []
        places = [each.name for each in given if each.kind is not each.KEYWORD_ONLY]
        keywords = [each.name for each in given if each.kind is each.KEYWORD_ONLY]
        keywords += [] if self.options is None else ["options"]
        try:
            taken.bind(*places, **dict.fromkeys(keywords))
        except TypeError as error:
            if method:
                takes, called = ", ".join(taken.parameters), ", ".join([*places, *(f"{each}=…" for each in keywords)])
                raise PluginError(f"{name} takes ({takes}), and is called with ({called}): {error}") from None

    def _bind(self, target: Any) -> Any:
        bound = target if self.options is None else functools.partial(target, options=self.options)
        return coroutines.blocking(bound) if coroutines.is_async(target) else bound


class UntrustedSelection(Selected[T]):
    """A part that names code which must not run: a use of its options raises ``error``."""

    error: UntrustedError

    def __init__(self, entry: Entry[T], error: UntrustedError) -> None:
        super().__init__(entry)
        object.__setattr__(self, "error", error)

    def __getattribute__(self, name: str) -> Any:
        if name == "options":
            raise self.error
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntrustedSelection) and self.entry == other.entry

    def __repr__(self) -> str:
        return f"UntrustedSelection({self.entry!r})"

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass(eq=False, repr=False)
class Registry(Generic[T]):
    """The named implementations of one kind.

    Args:
        kind: in words and in the singular, e.g. ``"advantage estimator"``.
        declared_contract, config_key, declared_needs, facts: as for :class:`corerl.contracts.kinds.Kind`.
    """

    kind: str
    declared_contract: type | str
    config_key: str = ""
    declared_needs: Mapping[str, str] | str = dataclasses.field(default_factory=dict)
    facts: type = NoFacts
    missing_hint: Callable[[str, str], str] = lambda kind, name: ""
    _entries: dict[str, Entry[T]] = dataclasses.field(default_factory=dict, init=False)
    _overriding: set[str] = dataclasses.field(default_factory=set, init=False)
    _clashes: dict[str, list[Owner]] = dataclasses.field(default_factory=dict, init=False)

    @functools.cached_property
    def contract(self) -> type:
        """The Protocol of all targets, imported at first use."""
        return typing.cast(type, loaded(self.declared_contract))

    @functools.cached_property
    def needs(self) -> Mapping[str, str]:
        """Name of each need that an entry may declare -> its effect; imported at first use."""
        return typing.cast(Mapping[str, str], loaded(self.declared_needs))

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def entry(
        self,
        name: str,
        target: T | str,
        owner: Owner,
        *,
        summary: str = "",
        options: type | None = None,
        needs: Collection[str] = (),
        **facts: Any,
    ) -> Entry[T]:
        """An entry of this kind, for :meth:`add`.

        Raises:
            PluginError: the kind lacks a need or a fact, or a fact has another type.
        """
        what = f"the {self.kind} '{name}'"
        wanted = frozenset({needs} if isinstance(needs, str) else needs)
        for need in sorted(wanted - self.needs.keys()) if wanted else ():
            near, known = did_you_mean(need, self.needs), ", ".join(self.needs) or "none"
            raise PluginError(f"{what} declares the unknown need '{need}'{near}; known: {known}")
        return Entry(self.kind, name, target, owner, summary, options, wanted, self._facts(what, facts))

    def _facts(self, what: str, given: Mapping[str, Any]) -> Any:
        defaults = {field.name: field.default for field in dataclasses.fields(self.facts)}
        facts = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        for name, value in facts.items():
            if name not in defaults:
                known = ["summary", "options", "override", "needs", *defaults]
                near = did_you_mean(name, known)
                raise PluginError(f"{what} declares the unknown fact '{name}'{near}; known: {', '.join(known)}")
            kind = type(defaults[name])
            if defaults[name] is not None and not isinstance(value, kind):
                raise PluginError(f"{what}: {name} must be a {kind.__name__}, not {value!r}")
        return self.facts(**facts)

    def add(self, entry: Entry[T], *, override: bool = False) -> None:
        """Add an entry. The meaning of a name does not depend on the order of plugins.

        Raises:
            NameClashError: the name is taken, and neither entry, or both, override the other.
        """
        present = self._entries.get(entry.name)
        overridden = entry.name in self._overriding
        if present is None or (override and not overridden):
            self._entries[entry.name] = entry
            self._clashes.pop(entry.name, None)
            if override:
                self._overriding.add(entry.name)
        elif override == overridden:
            self._clashes.setdefault(entry.name, [present.owner]).append(entry.owner)
            raise NameClashError(self.clash(entry.name))

    def clash(self, name: str) -> str:
        """The owners of a disputed name and the remedy, or ''."""
        if name not in self._clashes:
            return ""
        owners = " and ".join(f"by {owner}" for owner in self._clashes[name])
        return (
            f"{self.kind} '{name}' is registered {owners}: disable one of them (plugins.disable), or let one "
            "register it with override=True"
        )

    def get(self, name: str) -> Entry[T]:
        """The entry of a name in a config.

        Args:
            name: a registered name, ``package.module:attribute`` or ``./file.py:attribute``.

        Raises:
            UnknownNameError: the name is not registered; the message has the nearest name or the package to install.
            NameClashError: two plugins registered it.
            PluginError: the import of a ``module:attribute`` failed.
            UntrustedError: the name is code that must not run, or may be of such code.
        """
        if name in self._clashes:
            raise NameClashError(self.clash(name))
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return self._ad_hoc(name)
        known = ", ".join(sorted(self._entries)) or "none, because no installed plugin registers any"
        hint = self.missing_hint(self.kind, name)
        near = "" if hint else did_you_mean(name, [*self._entries, *known_names(self.kind)])
        raise UnknownNameError(f"unknown {self.kind} '{name}'{near}{hint}; known: {known}")

    def select(self, value: Any, key: str = "") -> Selected[T]:
        """The selection of ``name`` or ``{name: …, option: …}`` in a config, with checked and complete options.

        A selection of code that must not run is an :class:`UntrustedSelection`.

        Raises:
            ConfigError: no name, an unknown option, a wrong type or a value out of range; ``key`` is in the message.
            UnknownNameError, NameClashError, PluginError, UntrustedError: as for :meth:`get`.
        """
        key = key or self.config_key
        match value:
            case str():
                return self.select_named(value, {}, name_key=key, options_key=key)
            case {"name": str(name), **options}:
                named = {str(option): value for option, value in options.items()}
                return self.select_named(name, named, name_key=key, options_key=key)
        raise ConfigError(
            key, f"must be the name of a {self.kind}, or a mapping with 'name' and its options, not {value!r}"
        )

    def select_named(self, name: str, options: Mapping[str, Any], *, name_key: str, options_key: str) -> Selected[T]:
        """As :meth:`select`, for a name and options under two keys."""
        try:
            entry = self.get(name)
        except (UnknownNameError, NameClashError, PluginError, UntrustedError) as error:
            if isinstance(error, UntrustedError) and ":" in name:
                return UntrustedSelection(self._unread(name), UntrustedError(f"{name_key}: {error}"))
            raise type(error)(f"{name_key}: {error}") from error
        try:
            return self.with_options(entry, options, options_key)
        except UntrustedError as error:  # of an option
            return UntrustedSelection(entry, error)

    def with_options(self, entry: Entry[T], options: Mapping[str, Any], key: str) -> Selected[T]:
        """``entry`` with ``options`` (plain values), checked and filled in; errors as for :meth:`select`."""
        from corerl.config import typed

        declared = entry.load_options()
        if declared is None:
            if options:
                raise ConfigError(f"{key}.{next(iter(options))}", f"{self.kind} '{entry.name}' has no options")
            return self._selected(entry)
        built: Any = typed.build(declared, options, key)
        if isinstance(built, CompositeOptions):
            built.resolve(self.select, key)
        return self._selected(entry, built)

    def _selected(self, entry: Entry[T], options: Any = None) -> Selected[T]:
        selected = Selected(entry, options, self.declared_contract)
        if entry.target == entry.name:  # named directly: imported already
            selected.load()
        return selected

    def _ad_hoc(self, name: str) -> Entry[T]:
        """An entry for an object named directly; the annotation of its parameter ``options`` gives its options."""
        entry = self._unread(name)
        try:
            options = _options_annotation(entry.load())
        except NameError as error:
            raise PluginError(f"{self.kind} '{name}': the annotation of its parameter 'options': {error}") from error
        if options is not None and not (isinstance(options, type) and dataclasses.is_dataclass(options)):
            raise PluginError(f"{self.kind} '{name}': its parameter 'options' must be annotated with a dataclass")
        return dataclasses.replace(entry, options=options)

    def _unread(self, name: str) -> Entry[T]:
        """An entry for an object named directly, without its options."""
        return self.entry(name, name, Owner(name.rpartition(":")[0]))


def loaded(declared: Any) -> Any:
    """An object, imported if it is given as ``"module:attribute"``."""
    return modules.load_object(declared) if isinstance(declared, str) else declared


def _options_annotation(target: Any) -> Any:
    """The annotation of the parameter ``options``, or None; others may name types that are not imported."""
    if isinstance(target, type):
        function = vars(target).get("__init__", target.__init__)  # type: ignore[misc]
    else:
        function = target if hasattr(target, "__annotations__") else type(target).__call__
    function = inspect.unwrap(function)
    annotation = getattr(function, "__annotations__", {}).get("options")
    return eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation


KNOWN_NAMES = Path(__file__).parent / "known_names.json"


@functools.cache
def known_names(kind: str) -> dict[str, str]:
    """Name → distribution of everything of one kind that a CoreRL distribution registers, installed or not.

    ``scripts/known_names.py`` writes ``known_names.json``.
    """
    import json

    table: dict[str, dict[str, str]] = json.loads(KNOWN_NAMES.read_text())
    return table.get(kind, {})
