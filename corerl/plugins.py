"""Discovery: which plugins there are, what each registers, and which of them are broken."""

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pluggy

import corerl
from corerl import hookspecs
from corerl.contracts.kinds import Kind
from corerl.contracts.options import did_you_mean
from corerl.errors import NameClashError, PluginError
from corerl.registry import Entry, Owner, Registries, Registry
from corerl.registry.base import known_names
from corerl.registry.modules import load_file

GROUP = "corerl"
DISABLE_VARIABLE = "CORERL_DISABLE_PLUGINS"

_NOT_THEIRS = ("<frozen", *(str(Path(package.__file__ or "").parent) for package in (corerl, importlib, pluggy)))


@dataclasses.dataclass
class PluginRecord:
    """What became of one plugin.

    Attributes:
        name: its distribution, or the path of a file.
        version: of the distribution, '' for a file.
        module: where its hooks are.
        status: ``clash`` when a name that it registers is another plugin's too; the rest of it works.
        error: one line, '' when all is well.
        entries: (registry name, entry) pairs.
        import_seconds: that its import took; of modules that others had imported, nothing.
        hook_seconds: hook -> seconds, of those that it implements and that were called at start-up.
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
    """The plugins of this process, loaded.

    Args:
        load: Python files with hooks, beside what is installed.
        disable: distributions to leave out; those in the variable ``CORERL_DISABLE_PLUGINS`` (commas) are added.
        untrusted: files that a config names and that are not loaded; then no ``module:attribute`` is imported either.
            None: everything is trusted.

    A plugin that cannot be imported is recorded as broken and hides nothing else: its error is raised when a name is
    asked for that it would have supplied.

    Raises:
        PluginError: ``disable`` names a distribution that is neither installed nor one of CoreRL's.
    """

    def __init__(
        self, load: Sequence[str] = (), disable: Sequence[str] = (), untrusted: Sequence[str] | None = None
    ) -> None:
        self.registries = Registries()
        self._untrusted, self._is_restricted = untrusted or (), untrusted is not None
        self.records: list[PluginRecord] = []
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._modules: dict[str, ModuleType] = {}
        for name, registry in self.registries:
            self._open(name, registry)
        self._load(
            PluginRecord("corerl", corerl.__version__, "corerl.builtins"),
            functools.partial(importlib.import_module, "corerl.builtins"),
        )
        points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
        self._load_installed(points, {_normal(name) for name in (*disable, *_disabled_by_variable())})
        self._check_disabled(disable)
        for path in {Path(path).expanduser().resolve(): path for path in load}.values():
            self._load(PluginRecord(path, "", path), functools.partial(load_file, path))
        self.hooks = self._hook_names()
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
        """What a plugin knows of a key that the config does not have, as the end of a sentence; None: nothing."""
        explanation: str | None = self.hook.explain_config_key(key=key)
        return explanation

    def raise_if_broken(self, names: Collection[str]) -> None:
        """Raise PluginError for the first of these plugins that is broken."""
        for record in self.records:
            if record.status == "broken" and record.name in names:
                raise PluginError(f"plugin {record.name} is broken: {record.error}")

    def _load_installed(self, points: Sequence[EntryPoint], disabled: set[str]) -> None:
        for point in points:
            distribution, version = _distribution(point)
            record = PluginRecord(distribution, version, point.value)
            if _normal(distribution) in disabled:
                record.status = "disabled"
                self.records.append(record)
            else:
                self._load(record, functools.partial(_import_entry_point, point, distribution))

    def _open(self, name: str, registry: Registry[Any]) -> None:
        registry.missing_hint = self._missing_hint
        registry.trusted = not self._is_restricted
        hook = hookspecs.registration_hook(name)
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
            record.status, record.error = "broken", _one_line(error)

    def _add_kinds(self, record: PluginRecord, module: ModuleType) -> None:
        if self._manager.parse_hookimpl_opts(module, "add_kinds") is None:
            return
        kinds: list[Kind] = []
        start = time.perf_counter()
        module.add_kinds(kinds.append)
        record.hook_seconds["add_kinds"] = time.perf_counter() - start
        for kind in kinds:
            self._open(kind.registry, self.registries.add(kind))

    def _register(self, record: PluginRecord) -> None:
        """Let one plugin register; what it registers counts only when all of its hooks succeed."""
        try:
            self._register_hooks(record, self._modules[record.name])
            registrations = self._registrations(record)
        except (Exception, SystemExit) as error:
            record.status, record.error = "broken", _one_line(error)
            if self._manager.has_plugin(record.name):
                self._manager.unregister(name=record.name)
            return
        for registry_name, entry, override in registrations:
            record.entries.append((registry_name, entry))
            with contextlib.suppress(NameClashError):  # raised again when the name is asked for
                getattr(self.registries, registry_name).add(entry, override=override)

    def _hook_names(self) -> list[str]:
        """Every hook, those of added kinds too."""
        own = [name for name in vars(hookspecs) if self._manager.parse_hookspec_opts(hookspecs, name) is not None]
        return [*own, *(hookspecs.registration_hook(name) for name, _ in self.registries)]

    def _register_hooks(self, record: PluginRecord, module: ModuleType) -> None:
        """Make the module's hooks known.

        Raises:
            PluginError: a misspelt hook, or a function named like a hook that is not marked as one.
        """
        for name in self.hooks:
            defined_here = getattr(vars(module).get(name), "__module__", None) == module.__name__
            if defined_here and self._manager.parse_hookimpl_opts(module, name) is None:
                raise PluginError(f"the function {name} is not marked with @hookimpl")
        self._manager.register(module, name=record.name)
        for caller in self._manager.get_hookcallers(module) or ():
            optional = all(implementation.optionalhook for implementation in caller.get_hookimpls())
            if not caller.has_spec() and not optional:
                raise PluginError(f"there is no hook '{caller.name}'{did_you_mean(caller.name, self.hooks)}")

    def _registrations(self, record: PluginRecord) -> list[tuple[str, Entry[Any], bool]]:
        """(registry name, entry, override) of everything that this plugin's hooks register."""
        found: list[tuple[str, Entry[Any], bool]] = []
        others = [plugin for name, plugin in self._manager.list_name_plugin() if name != record.name]
        owner = Owner(record.name, record.version)
        implemented = {caller.name for caller in self._manager.get_hookcallers(self._modules[record.name]) or ()}
        for registry_name, registry in self.registries:
            hook = hookspecs.registration_hook(registry_name)
            if hook not in implemented:
                continue

            def register(
                name: str,
                target: Any,
                *,
                override: bool = False,
                registry_name: str = registry_name,
                registry: Registry[Any] = registry,
                **declared: Any,
            ) -> None:
                entry = registry.entry(name, target, owner, **declared)
                _check_registration(entry)
                found.append((registry_name, entry, override))

            start = time.perf_counter()
            self._manager.subset_hook_caller(hook, others)(register=register)
            record.hook_seconds[hook] = time.perf_counter() - start
        return found

    def _mark_clashes(self) -> None:
        for record in self.records:
            for registry_name, entry in record.entries:
                message = getattr(self.registries, registry_name).clash(entry.name)
                if message:
                    record.status, record.error = "clash", message

    def _check_disabled(self, disable: Sequence[str]) -> None:
        known = {record.name for record in self.records[1:]}  # the first is the core
        for _, registry in self.registries:
            known.update(known_names(registry.kind).values())
        for name in disable:
            if _normal(name) not in {_normal(plugin) for plugin in known}:
                raise PluginError(f"plugins.disable: no plugin is called '{name}'{did_you_mean(name, known)}")

    def _missing_hint(self, kind: str, name: str) -> str:
        """Where an unknown name could come from: a plugin not installed, disabled or broken; '' when nobody knows."""
        distribution = known_names(kind).get(name)
        if distribution is not None:
            record = next((record for record in self.records if _normal(record.name) == distribution), None)
            if record is None:
                return f": it comes with {distribution}, which is not installed (pip install {distribution})"
            if record.status == "disabled":
                return f": it comes with {distribution}, which is disabled (plugins.disable or {DISABLE_VARIABLE})"
            if record.status == "broken":
                return f": it comes with {distribution}, which is broken ({record.error})"
            return f": it comes with another version of {distribution} than {record.version}, which is installed"
        if self._untrusted:
            return f"; it may come from {', '.join(self._untrusted)}, which was not loaded: --trust loads it"
        broken = [f"{record.name} ({record.error})" for record in self.records if record.status == "broken"]
        return f"; it may be of a broken plugin: {', '.join(broken)}" if broken else ""


def load_plugins(
    load: tuple[str, ...] = (), disable: tuple[str, ...] = (), untrusted: tuple[str, ...] | None = None
) -> Plugins:
    """The plugins of this process; the same arguments give the same object, so that loading twice is free.

    Args:
        load, disable, untrusted: as for :class:`Plugins`. They are plain strings, so that a worker
            process loads the same plugins.

    Raises:
        PluginError: one of the files in ``load``, which were asked for by name, is broken.
    """
    return _loaded(load, disable, untrusted)


@functools.lru_cache(maxsize=8)
def _loaded(load: tuple[str, ...], disable: tuple[str, ...], untrusted: tuple[str, ...] | None) -> Plugins:
    plugins = Plugins(load, disable, untrusted)
    plugins.raise_if_broken(load)
    return plugins


def forget_plugins() -> None:
    """Load them again at the next call of :func:`load_plugins`; for tests."""
    _loaded.cache_clear()


def _distribution(point: EntryPoint) -> tuple[str, str]:
    """Name and version of its distribution, whose metadata are parsed at each access."""
    if point.dist is None:
        return point.name, ""
    metadata = point.dist.metadata
    return metadata["Name"], metadata["Version"] or ""


def _import_entry_point(point: EntryPoint, distribution: str) -> ModuleType:
    if _normal(point.name) != _normal(distribution):
        raise PluginError(f"its entry point must be named like the distribution, {distribution}, not {point.name}")
    module = point.load()
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


def _one_line(error: BaseException) -> str:
    """The error in one line, with the place in the plugin's own code where it was raised."""
    text = " ".join(str(error).split())
    if isinstance(error, PluginError):
        return text
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)
    ]
    if frames and not isinstance(error, SyntaxError):  # which names its place itself
        text += f" ({frames[-1].filename}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {text}"


def _disabled_by_variable() -> list[str]:
    return [name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",") if name.strip()]


def _normal(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
