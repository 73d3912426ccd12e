"""``corerl plugins check``: checks of parts against their contract."""

import dataclasses
import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import click

from corerl.cli.common import plugin_options
from corerl.errors import ConfigError
from corerl.plugins import PluginRecord, Plugins
from corerl.registry import Entry
from corerl.terminal import echo
from corerl_testing.checks import Check, Outcome, checks_of, outcome, share_options
from corerl_tools.plugin_lists import as_json, find


@click.command()
@click.argument("name")
@click.option("--option", "options", multiple=True, metavar="NAME.KEY=VALUE", help="Set an option of an entry.")
@click.option("--light", is_flag=True, help="Run only the checks that need no torch: no checks of behaviour.")
@as_json
@plugin_options
@click.pass_context
def check(
    context: click.Context,
    name: str,
    options: tuple[str, ...],
    light: bool,
    as_json: bool,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> None:
    """Check NAME, or all parts of the plugin NAME, against the contract of their kind."""
    loaded = Plugins(plugin, disable_plugin)
    record, items = find(loaded, name)
    entries = [entry for _, entry in items]
    given = share_options(entries, _given_options(entries, options))
    checks = [check for item, own in zip(items, given, strict=True) for check in checks_of(*item, own, light=light)]
    _report(context, [] if record is None else [_load_outcome(record)], checks, as_json)


def _report(context: click.Context, loading: Sequence[Outcome], checks: Sequence[Check], as_json: bool) -> None:
    """Run the checks and print each result; exit code 1 if a check fails."""
    labels = [*map(_labels, loading), *map(_labels, checks)]
    widths = [max(map(len, column)) for column in zip(*labels, strict=True)]
    outcomes = []
    for result in chain(loading, map(outcome, checks)):
        outcomes.append(result)
        if not as_json:
            echo(_line(result, widths))
    if as_json:
        rows = [dataclasses.asdict(result) | {"ok": result.status != "failed"} for result in outcomes]
        echo(json.dumps(rows, indent=2))
    if any(result.status == "failed" for result in outcomes):
        context.exit(1)


def _given_options(entries: Sequence[Entry[Any]], overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``name.key=value`` as entry name -> its options.

    Raises:
        ConfigError: an override is malformed, or its entry does not exist or has no options.
    """
    from corerl.config.load import read

    own: dict[str, list[str]] = {}
    with_options = {entry.name: entry for entry in entries if entry.options is not None}
    for override in overrides:
        name = next((name for name in with_options if override.startswith(f"{name}.")), None)
        if name is None:
            names = ", ".join(sorted(with_options)) or "none"
            raise ConfigError("", f"--option {override}: it must be NAME.KEY=VALUE; those with options are: {names}")
        own.setdefault(name, []).append(override.removeprefix(f"{name}."))
    classes: dict[str, Any] = {name: with_options[name].load_options() for name in own}
    return {name: read(classes[name], None, texts) for name, texts in own.items()}


def _load_outcome(record: PluginRecord) -> Outcome:
    status: Literal["ok", "failed"] = "ok" if record.status == "ok" else "failed"
    return Outcome("plugin", record.name, "load", status, record.error or ("" if status == "ok" else record.status))


def _labels(check: Check | Outcome) -> tuple[str, str]:
    return f"{check.kind} {check.entry}", check.name if isinstance(check, Check) else check.check


def _line(result: Outcome, widths: Sequence[int]) -> str:
    verdict = {"ok": "ok", "skipped": f"skipped: {result.reason}", "failed": f"FAILED: {result.reason}"}
    cells = [f"{label:<{width}}" for label, width in zip(_labels(result), widths, strict=True)]
    return "  ".join([*cells, verdict[result.status]])
