"""Discovery of plugins, their registrations and their faults."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import re
import time
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pluggy

import corerl
from corerl import hookspecs
from corerl.contracts.kinds import Kind
from corerl.contracts.options import did_you_mean
from corerl.errors import NameClashError, PluginError, UntrustedError
from corerl.registry import Entry, Owner, Registries, Registry
from corerl.registry.base import known_names
from corerl.registry.installed import GROUP, PluginPoint, normal, plugin_points
from corerl.registry.modules import load_file, load_object, may_run, one_line, trusted_files

DISABLE_VARIABLE = "CORERL_DISABLE_PLUGINS"


@dataclasses.dataclass
class PluginRecord:
    """One plugin and its state.

    Attributes:
        name: its distribution, or the path of a file.
        version: of the distribution, '' for a file.
        module: of its hooks.
        status: ``clash``: another plugin registered one of its names; its other names work.
        error: one line, or ''.
        entries: (registry name, entry) pairs.
        import_seconds: of its import, without modules that were imported before.
        hook_seconds: hook -> seconds, of its hooks at start-up.
    """

    name: str
    version: str
    module: str
    status: Literal["ok", "broken", "disabled", "clash"] = "ok"
    error: str = ""
    entries: list[tuple[str, Entry[Any]]] = dataclasses.field(default_factory=list)
    import_seconds: float = 0.0
    hook_seconds: dict[str, float] = dataclasses.field(default_factory=dict)


class Plugins:
    """The loaded plugins of this process.

    Args:
        load: Python files with hooks, beside the installed plugins.
        disable: distributions to leave out, in addition to the variable ``CORERL_DISABLE_PLUGINS`` (commas).

    A plugin with a failed import is recorded as broken. Its error is raised when one of its names is selected.

    Attributes:
        untrusted: files that must not run (:func:`corerl.registry.modules.untrusted`), which are not loaded.

    Raises:
        PluginError: ``disable`` names a distribution that is neither installed nor one of CoreRL's.
    """

    def __init__(self, load: Sequence[str] = (), disable: Sequence[str] = ()) -> None:
        self.registries = Registries()
        self.records: list[PluginRecord] = []
        self.untrusted: list[str] = []
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self.hooks = [
            name for name in vars(hookspecs) if self._manager.parse_hookspec_opts(hookspecs, name) is not None
        ]
        self._modules: dict[str, ModuleType] = {}
        for name, registry in self.registries:
            self._open(name, registry)
        core = PluginRecord("corerl", corerl.__version__, "corerl.builtins")
        self._load(core, lambda: importlib.import_module("corerl.builtins"))
        self._load_installed({normal(name) for name in (*disable, *_disabled_by_variable())})
        if disable:
            self._check_disabled(disable)
        for path in {Path(path).expanduser().resolve(): path for path in load}.values():
            if may_run(path):
                self._load(PluginRecord(path, "", path), functools.partial(load_file, path))
            else:
                self.untrusted.append(path)
        for record in self.records:  # once all kinds are there
            if record.status == "ok":
                self._register(record)
        self._mark_clashes()

    @property
    def hook(self) -> pluggy.HookRelay:
        """The life-cycle hooks of all plugins."""
        return self._manager.hook

    def config_aliases(self) -> dict[str, str]:
        """Alias -> key of the config, of all plugins.

        Raises:
            PluginError: an alias stands for two keys.
        """
        aliases: dict[str, str] = {}
        for each in self.hook.config_aliases():
            for alias, key in each.items():
                if aliases.setdefault(alias, key) != key:
                    raise PluginError(f"two plugins have the alias {alias}: for {aliases[alias]} and for {key}")
        return aliases

    def explain_key(self, key: str) -> str | None:
        """A plugin's remedy for an unknown key of the config, as the end of a sentence, or None."""
        return typing.cast(str | None, self.hook.explain_config_key(key=key))

    def raise_if_broken(self, names: Collection[str]) -> None:
        """Raise PluginError for the first of these plugins that is broken."""
        for record in self.records:
            if record.status == "broken" and record.name in names:
                raise PluginError(f"plugin {record.name} is broken: {record.error}")

    def _load_installed(self, disabled: set[str]) -> None:
        for point in sorted(plugin_points()):
            record = PluginRecord(point.distribution, point.version, point.value)
            if normal(point.distribution) in disabled:
                record.status = "disabled"
                self.records.append(record)
            else:
                self._load(record, functools.partial(_import_entry_point, point))

    def _open(self, name: str, registry: Registry[Any]) -> None:
        registry.missing_hint = self._missing_hint
        hook = hookspecs.registration_hook(name)
        self.hooks.append(hook)
        self._manager.add_hookspecs(type("Registration", (), {hook: hookspecs.hookspec(_registration)}))

    def _load(self, record: PluginRecord, import_module: Callable[[], ModuleType]) -> None:
        """Import one plugin, and add its kinds."""
        self.records.append(record)
        start = time.perf_counter()
        try:
            module = self._modules[record.name] = import_module()
            record.import_seconds = time.perf_counter() - start
            _check_api(module)
            self._add_kinds(record, module)
        except (Exception, SystemExit) as error:
            record.status, record.error = "broken", one_line(error)

    def _add_kinds(self, record: PluginRecord, module: ModuleType) -> None:
        is_there = hasattr(module, "add_kinds")  # pluggy 1.6 raises for an attribute that is not there
        if not is_there or self._manager.parse_hookimpl_opts(module, "add_kinds") is None:
            return
        kinds: list[Kind] = []
        start = time.perf_counter()
        module.add_kinds(kinds.append)
        record.hook_seconds["add_kinds"] = time.perf_counter() - start
        for kind in kinds:
            self._open(kind.registry, self.registries.add(kind))

    def _register(self, record: PluginRecord) -> None:
        """Call the registration hooks of one plugin; its registrations count if all of them succeed."""
        try:
            self._register_hooks(record, self._modules[record.name])
            registrations = self._registrations(record)
        except (Exception, SystemExit) as error:
            record.status, record.error = "broken", one_line(error)
            if self._manager.has_plugin(record.name):
                self._manager.unregister(name=record.name)
            return
        for registry_name, entry, override in registrations:
            record.entries.append((registry_name, entry))
            with contextlib.suppress(NameClashError):  # raised again when the name is asked for
                getattr(self.registries, registry_name).add(entry, override=override)

    def _register_hooks(self, record: PluginRecord, module: ModuleType) -> None:
        """Add the module's hooks.

        Raises:
            PluginError: a misspelt hook, or a function with the name of a hook and without its mark.
        """
        for name in self.hooks:
            defined_here = getattr(vars(module).get(name), "__module__", None) == module.__name__
            if defined_here and self._manager.parse_hookimpl_opts(module, name) is None:
                raise PluginError(f"the function {name} is not marked with @hookimpl")
            known = getattr(self.hook, name).spec.argnames
            for each in inspect.signature(vars(module)[name]).parameters.values() if defined_here else ():
                if each.name not in known and each.default is each.empty:
                    raise PluginError(f"{name} takes '{each.name}', and the hook gives {', '.join(known) or 'nothing'}")
        self._manager.register(module, name=record.name)
        for caller in self._manager.get_hookcallers(module) or ():
            optional = all(implementation.optionalhook for implementation in caller.get_hookimpls())
            if not caller.has_spec() and not optional:
                raise PluginError(f"there is no hook '{caller.name}'{did_you_mean(caller.name, self.hooks)}")

    def _registrations(self, record: PluginRecord) -> list[tuple[str, Entry[Any], bool]]:
        """(registry name, entry, override) of everything that this plugin's hooks register."""
        found: list[tuple[str, Entry[Any], bool]] = []
        owner = Owner(record.name, record.version)

        def registered(registry_name: str, name: str, target: Any, *, override: bool = False, **declared: Any) -> None:
            entry = getattr(self.registries, registry_name).entry(name, target, owner, **declared)
            _check_registration(entry)
            found.append((registry_name, entry, override))

        for registry_name, _ in self.registries:
            hook = hookspecs.registration_hook(registry_name)
            for implementation in getattr(self.hook, hook).get_hookimpls():
                if implementation.plugin_name == record.name:
                    start = time.perf_counter()
                    implementation.function(functools.partial(registered, registry_name))
                    record.hook_seconds[hook] = time.perf_counter() - start
        return found

    def _mark_clashes(self) -> None:
        for record in self.records:
            for registry_name, entry in record.entries:
                if message := getattr(self.registries, registry_name).clash(entry.name):
                    record.status, record.error = "clash", message

    def _check_disabled(self, disable: Sequence[str]) -> None:
        known = {record.name for record in self.records[1:]}  # the first is the core
        for _, registry in self.registries:
            known.update(known_names(registry.kind).values())
        for name in disable:
            if normal(name) not in {normal(plugin) for plugin in known}:
                raise PluginError(f"plugins.disable: no plugin is called '{name}'{did_you_mean(name, known)}")

    def _missing_hint(self, kind: str, name: str) -> str:
        """The possible source of an unknown name: a plugin that is not installed, disabled or broken; else ''.

        Raises:
            UntrustedError: the name may come from a file that must not run.
        """
        if name.endswith(".py"):
            return f": of a file, the function is named, too: {name}:FUNCTION"
        distribution = known_names(kind).get(name)
        if distribution is None:
            if self.untrusted:
                files = ", ".join(self.untrusted)
                raise UntrustedError(f"{kind} '{name}' may come from {files}, which was not loaded: --trust loads it")
            broken = [f"{record.name} ({record.error})" for record in self.records if record.status == "broken"]
            return f"; it may be of a broken plugin: {', '.join(broken)}" if broken else ""
        reason = f"which is not installed (pip install {distribution})"
        for record in self.records:
            if normal(record.name) == distribution:
                reason = {
                    "disabled": f"which is disabled (plugins.disable or {DISABLE_VARIABLE})",
                    "broken": f"which is broken ({record.error})",
                }.get(record.status, f"which is installed in version {record.version} without it")
        return f": it comes with {distribution}, {reason}"


def load_plugins(load: tuple[str, ...] = (), disable: tuple[str, ...] = ()) -> Plugins:
    """The plugins of this process, cached by the arguments: plain strings, so worker processes load the same plugins.

    Args:
        load, disable: as for :class:`Plugins`.

    Raises:
        PluginError: a file in ``load`` is broken.
    """
    return _loaded(load, disable, trusted_files.get() if load else None)


@functools.lru_cache(maxsize=8)
def _loaded(load: tuple[str, ...], disable: tuple[str, ...], trusted: frozenset[Path] | None) -> Plugins:
    plugins = Plugins(load, disable)
    plugins.raise_if_broken(load)
    return plugins


def forget_plugins() -> None:
    """Empty the cache of :func:`load_plugins`; for tests."""
    _loaded.cache_clear()


def _import_entry_point(point: PluginPoint) -> ModuleType:
    if normal(point.name) != normal(point.distribution):
        raise PluginError(
            f"its entry point must be named like the distribution, {point.distribution}, not {point.name}"
        )
    module = load_object(point.value) if ":" in point.value else importlib.import_module(point.value)
    if not isinstance(module, ModuleType):
        raise PluginError(f"its entry point must name a module, not {point.value}")
    return module


def _registration(register: hookspecs.Register[Any]) -> None:
    """Register parts of one kind."""


def _check_api(module: ModuleType) -> None:
    """
    Raises:
        PluginError: the module's ``corerl_api`` (">=1,<2") leaves out the API of this version.
    """
    wanted = getattr(module, "corerl_api", None)
    if wanted is None:
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        fits = SpecifierSet(wanted).contains(corerl.API_VERSION)
    except (InvalidSpecifier, TypeError, AttributeError) as error:
        raise PluginError(f"its corerl_api must be a range such as '>=1,<2', not {wanted!r}") from error
    if not fits:
        raise PluginError(
            f"it was written for API {wanted} of CoreRL, and corerl {corerl.__version__} has API "
            f"{corerl.API_VERSION}: install a version of it for this API, or another corerl (docs/compatibility.md)"
        )


def _check_registration(entry: Entry[Any]) -> None:
    what = f"the {entry.kind} '{entry.name}'"
    if not isinstance(entry.name, str) or not re.fullmatch(r"[^\s:/=]+", entry.name):
        raise PluginError(f"{what} needs a name without spaces, ':', '/' and '='")
    for word, value in (("target", entry.target), ("options", entry.options)):
        if isinstance(value, str) and not re.fullmatch(r"[^\s:]+:[^\s:]+", value):
            raise PluginError(f"{what} must name its {word} as 'package.module:attribute', not '{value}'")
    if not isinstance(entry.options, str):
        entry.load_options()


def _disabled_by_variable() -> list[str]:
    return [name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",") if name.strip()]
