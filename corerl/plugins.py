"""Discovery: which plugins there are, what each registers, and which of them are broken."""

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Literal

import pluggy

import corerl
from corerl import hookspecs
from corerl.errors import NameClashError
from corerl.registry import Entry, Owner, Registries
from corerl.registry.base import distribution_of
from corerl.registry.modules import load_file

GROUP = "corerl"
DISABLE_VARIABLE = "CORERL_DISABLE_PLUGINS"


@dataclasses.dataclass
class PluginRecord:
    """What became of one plugin."""

    name: str
    version: str
    module: str
    status: Literal["ok", "broken", "disabled"] = "ok"
    error: str = ""
    entries: list[tuple[str, Entry[Any]]] = dataclasses.field(default_factory=list)
    """(registry name, entry) pairs"""


class Plugins:
    """The plugins of this process, loaded.

    Args:
        load: Python files with hooks, beside what is installed.
        disable: distributions to leave out; those in the variable ``CORERL_DISABLE_PLUGINS`` (commas) are added.

    A plugin that cannot be imported is recorded as broken and hides nothing else: its error is raised when a name is
    asked for that it would have supplied.
    """

    def __init__(self, load: Sequence[str] = (), disable: Sequence[str] = ()) -> None:
        self.registries = Registries()
        self.records: list[PluginRecord] = []
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        disabled = {*disable, *filter(None, os.environ.get(DISABLE_VARIABLE, "").split(","))}
        for _, registry in self.registries:
            registry.missing_hint = self._missing_hint
        builtins = PluginRecord("corerl", corerl.__version__, "corerl.builtins")
        self._load(builtins, functools.partial(importlib.import_module, builtins.module))
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
            record = PluginRecord(point.name, point.dist.version if point.dist else "", point.value)
            if point.name in disabled:
                record.status = "disabled"
                self.records.append(record)
            elif point.name not in {known.name for known in self.records}:
                self._load(record, point.load)
        for path in load:
            self._load(PluginRecord(path, "", path), functools.partial(load_file, path))

    @property
    def hook(self) -> pluggy.HookRelay:
        """The life-cycle hooks of all plugins."""
        return self._manager.hook

    def _load(self, record: PluginRecord, import_module: Callable[[], ModuleType]) -> None:
        """Import one plugin and let it register; what it registers counts only when all of its hooks succeed."""
        self.records.append(record)
        try:
            self._manager.register(import_module(), name=record.name)
            self._manager.check_pending()
            registrations = self._registrations(record)
        except Exception as error:
            record.status, record.error = "broken", f"{type(error).__name__}: {error}".splitlines()[0]
            if self._manager.has_plugin(record.name):
                self._manager.unregister(name=record.name)
            return
        for registry_name, entry, override in registrations:
            try:
                getattr(self.registries, registry_name).add(entry, override=override)
                record.entries.append((registry_name, entry))
            except NameClashError as error:
                record.status, record.error = "broken", str(error)

    def _registrations(self, record: PluginRecord) -> list[tuple[str, Entry[Any], bool]]:
        """(registry name, entry, override) of everything that this plugin's hooks register."""
        found: list[tuple[str, Entry[Any], bool]] = []
        others = [plugin for name, plugin in self._manager.list_name_plugin() if name != record.name]
        for registry_name, registry in self.registries:

            def register(
                name: str,
                target: Any,
                *,
                override: bool = False,
                registry_name: str = registry_name,
                kind: str = registry.kind,
                **facts: Any,
            ) -> None:
                owner = Owner(record.name, record.version)
                found.append((registry_name, Entry(kind, name, target, owner, **facts), override))

            hook = hookspecs.registration_hook(registry_name)
            self._manager.subset_hook_caller(hook, others)(register=register)
        return found

    def _missing_hint(self, kind: str, name: str) -> str:
        """Where an unknown name could come from: a plugin not installed, disabled or broken; '' when nobody knows."""
        distribution = distribution_of(kind, name)
        if distribution is not None:
            record = next((record for record in self.records if record.name == distribution), None)
            if record is None:
                return f": it comes with {distribution}, which is not installed (pip install {distribution})"
            if record.status == "disabled":
                return f": it comes with {distribution}, which is disabled (plugins.disable or {DISABLE_VARIABLE})"
            if record.status == "broken":
                return f": it comes with {distribution}, which is broken ({record.error})"
        broken = [f"{record.name} ({record.error})" for record in self.records if record.status == "broken"]
        return f"; broken plugins, one of which may supply it: {', '.join(broken)}" if broken else ""


@functools.lru_cache(maxsize=8)
def load_plugins(load: tuple[str, ...] = (), disable: tuple[str, ...] = ()) -> Plugins:
    """The plugins of this process; the same arguments give the same object, so that loading twice is free.

    Args:
        load, disable: as for :class:`Plugins`. They are plain strings, so that a worker process loads the same plugins.
    """
    return Plugins(load, disable)
