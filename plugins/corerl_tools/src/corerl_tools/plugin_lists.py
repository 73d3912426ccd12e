"""``corerl plugins``: installed plugins, the owner of every name, and the checks of contracts."""

import dataclasses
import functools
import inspect
import json
import typing
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import click

from corerl.cli.common import plugin_options
from corerl.contracts.options import did_you_mean
from corerl.errors import PluginError, UnknownNameError
from corerl.hookspecs import registration_hook
from corerl.plugins import PluginRecord, Plugins, load_plugins
from corerl.registry import Entry, Registry
from corerl.registry.base import known_names
from corerl.registry.scorers import table_of_sources
from corerl.terminal.output import echo
from corerl_tools.common import range_label, table, type_label

Item = tuple[Registry[Any], Entry[Any]]

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command(name="list")
@as_json
@plugin_options
def list_(as_json: bool, plugin: tuple[str, ...], disable_plugin: tuple[str, ...]) -> None:
    """List the plugins, every registered name by kind, and the scorer of each data source."""
    loaded = Plugins(plugin, disable_plugin)
    records = [_record_facts(record) for record in loaded.records]
    names = [*map(_entry_row, _items(loaded)), *_not_installed(loaded)]
    sources = sorted(table_of_sources(loaded.registries.scorers).items())
    if as_json:
        scored = {source: [entry.name for entry in entries] for source, entries in sources}
        echo(json.dumps({"plugins": records, "names": names, "data_sources": scored}, indent=2))
        return
    echo("plugins")
    echo(table([[row["name"], row["version"], row["status"], row["error"] or row["module"]] for row in records]))
    for _, registry in loaded.registries:
        rows = sorted((row for row in names if row["kind"] == registry.kind), key=lambda row: row["name"])
        if rows:
            echo(f"\n{registry.kind}" + (f" ({registry.config_key})" if registry.config_key else ""))
            cells = [[row["name"], _owner(row), row["status"], row["summary"]] for row in rows]
            echo(table(cells))
    if sources:
        echo("\ndata source -> scorer (reward.scorers)")
        echo(table([[source, " and ".join(entry.name for entry in entries)] for source, entries in sources]))


@click.command()
@click.argument("name")
@as_json
@plugin_options
def show(name: str, as_json: bool, plugin: tuple[str, ...], disable_plugin: tuple[str, ...]) -> None:
    """Show everything about NAME: a registered name, kind/name, module:attribute under a kind, or a plugin."""
    loaded = Plugins(plugin, disable_plugin)
    record, items = find(loaded, name)
    facts = [_entry_facts(*item) for item in items]
    if as_json:
        echo(json.dumps({"plugin": record and _record_facts(record), "names": facts}, indent=2))
        return
    if record is not None:
        echo(table([(key, value) for key, value in _record_facts(record).items() if value], indent=""))
    for number, entry in enumerate(facts):
        echo("\n" if number or record else "", nl=False)
        echo(_entry_text(entry))


@click.command()
@plugin_options
def trace(plugin: tuple[str, ...], disable_plugin: tuple[str, ...]) -> None:
    """Show the hooks of plugins in the order of their calls: times in milliseconds, and the registered names."""
    rows = [("plugin", "import ms", "hook", "ms", "names")]
    for record in load_plugins(plugin, disable_plugin).records:
        imported = f"{1000 * record.import_seconds:.1f}"
        for hook, seconds in record.hook_seconds.items() or [("", 0.0)]:
            names = ", ".join(entry.name for kind, entry in record.entries if registration_hook(kind) == hook)
            rows.append((record.name, imported, hook or record.status, f"{1000 * seconds:.1f}", names))
            imported = ""
    echo(table(rows, indent=""))


def _items(loaded: Plugins) -> Iterator[Item]:
    """All registered entries, including clashing and overridden ones."""
    for record in loaded.records:
        for registry_name, entry in record.entries:
            yield getattr(loaded.registries, registry_name), entry


def find(loaded: Plugins, name: str) -> tuple[PluginRecord | None, list[Item]]:
    """The plugin called ``name`` with its entries, or the entries of that name.

    Raises:
        UnknownNameError: no plugin and no entry has that name.
        PluginError: another plugin of a file is broken.
    """
    for record in loaded.records:
        if record.name == name:
            return record, [
                (getattr(loaded.registries, registry_name), entry) for registry_name, entry in record.entries
            ]
    loaded.raise_if_broken([record.name for record in loaded.records if not record.version])
    kind, _, leaf = name.partition("/")
    for registry_name, registry in loaded.registries:
        if leaf and kind in (
            registry_name,
            registry.kind,
            registry.kind.replace(" ", "_"),
            registry.kind.replace(" ", "-"),
        ):
            same = [item for item in _items(loaded) if item[0] is registry and item[1].name == leaf]
            return None, same or [(registry, registry.get(leaf))]
    if ":" in name:
        raise UnknownNameError(f"'{name}' names no kind: write it as policy_losses/{name}, say")
    items = [item for item in _items(loaded) if item[1].name == name]
    if not items:
        raise _unknown(loaded, name)
    return None, items


def _unknown(loaded: Plugins, name: str) -> UnknownNameError:
    for _, registry in loaded.registries:
        if name in known_names(registry.kind):
            return UnknownNameError(f"{registry.kind} '{name}'{registry.missing_hint(registry.kind, name)}")
    known = {record.name for record in loaded.records} | {entry.name for _, entry in _items(loaded)}
    known.update(*(known_names(registry.kind) for _, registry in loaded.registries))
    broken = [f"{record.name} ({record.error})" for record in loaded.records if record.status == "broken"]
    hint = f"; it may be of a broken plugin: {', '.join(broken)}" if broken else did_you_mean(name, sorted(known))
    return UnknownNameError(f"no plugin and no registered name is called '{name}'{hint}")


def _record_facts(record: PluginRecord) -> dict[str, str]:
    return {
        "name": record.name,
        "version": record.version,
        "status": record.status,
        "module": record.module,
        "error": record.error,
    }


def _entry_row(item: Item) -> dict[str, str]:
    registry, entry = item
    return {
        "kind": entry.kind,
        "name": entry.name,
        "owner": entry.owner.distribution,
        "version": entry.owner.version,
        "status": _status(registry, entry),
        "summary": entry.summary,
    }


def _not_installed(loaded: Plugins) -> Iterable[dict[str, str]]:
    """Known names whose distribution is not installed, disabled or broken."""
    statuses = {record.name: record.status for record in loaded.records}
    for _, registry in loaded.registries:
        for name, distribution in known_names(registry.kind).items():
            if name not in registry:
                status = statuses.get(distribution, "not installed")
                summary = f"pip install {distribution}" if status == "not installed" else ""
                if status == "ok":
                    status, summary = "not installed", f"of another version of {distribution}"
                row = {"kind": registry.kind, "name": name, "owner": distribution, "version": ""}
                yield row | {"status": status, "summary": summary}


def _owner(row: dict[str, str]) -> str:
    return f"{row['owner']} {row['version']}".rstrip()


def _entry_facts(registry: Registry[Any], entry: Entry[Any]) -> dict[str, Any]:
    try:
        file, line = source_of(entry)
        source, error = f"{file}:{line}", ""
    except PluginError as failure:
        source, error = "", str(failure)
    return {
        **_entry_row((registry, entry)),
        "error": registry.clash(entry.name) or error,
        "config": registry.config_key,
        "needs": sorted(entry.needs),
        "facts": {name: _plain(value) for name, value in vars(entry.facts).items() if value},
        "target": _plain(entry.target),
        "source": source,
        "options": _option_facts(options) if (options := entry.load_options()) else [],
        "contract": f"{registry.contract.__name__}: {inspect.getdoc(registry.contract) or ''}",
    }


def _status(registry: Registry[Any], entry: Entry[Any]) -> str:
    """Whether ``entry.name`` means this entry, or another plugin's, or none before its clash is settled."""
    if registry.clash(entry.name):
        return "clash"
    return "ok" if registry.get(entry.name) is entry else "overridden"


def source_of(entry: Entry[Any]) -> tuple[str, int]:
    """File and line of the definition of a target; ``("<unknown>", 0)`` if it is not written in Python.

    Raises:
        PluginError: the target cannot be imported.
    """
    target: Any = entry.load()
    target = inspect.unwrap(getattr(target, "callback", target))  # a click command, a decorated function
    while isinstance(target, functools.partial):
        target = target.func
    if not isinstance(target, type | FunctionType | MethodType):  # an instance with __call__
        target = type(target)
    try:
        return inspect.getsourcefile(target) or "<unknown>", inspect.getsourcelines(target)[1]
    except (OSError, TypeError):
        return "<unknown>", 0


def _plain(value: Any) -> Any:
    """A fact or a target as a JSON value: code by its name."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str | int | float):
        return value
    return value.__qualname__ if callable(value) else str(value)


def _option_facts(options: type) -> list[dict[str, Any]]:
    hints = typing.get_type_hints(options)
    return [
        {
            "name": field.name,
            "type": type_label(hints[field.name]),
            "default": _default(field),
            "range": range_label(field),
            "help": field.metadata.get("help", ""),
        }
        for field in dataclasses.fields(options)
    ]


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is not dataclasses.MISSING:
        return json.dumps(field.default, default=repr)
    if field.default_factory is not dataclasses.MISSING:
        return json.dumps(field.default_factory(), default=repr)
    return "required"


def _entry_text(facts: dict[str, Any]) -> str:
    lines = [f"{facts['kind']} {facts['name']}"]
    rows = [("owner", _owner(facts))]
    rows += [(key, facts[key]) for key in ("status", "summary", "config", "target", "source", "error") if facts[key]]
    for key, value in {"needs": facts["needs"], **facts["facts"]}.items():
        rows += [(key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))] if value else []
    lines.append(table(rows))
    if facts["options"]:
        lines.append("  options")
        options = [
            (row["name"], row["type"], f"= {row['default']}", "; ".join(filter(None, (row["help"], row["range"]))))
            for row in facts["options"]
        ]
        lines.append(table(options, indent="    "))
    lines.append("  contract")
    lines += [f"    {line}".rstrip() for line in facts["contract"].splitlines()]
    return "\n".join(lines)
