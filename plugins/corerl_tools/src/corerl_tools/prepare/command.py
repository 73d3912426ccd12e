"""``corerl prepare``: one sub-command for each registered dataset preparer."""

import dataclasses
import functools
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from corerl.cli.common import plugin_options
from corerl.plugins import load_plugins
from corerl.registry import Entry, Registry
from corerl.terminal import echo
from corerl_tools.common import range_label, table, type_label
from corerl_tools.prepare.contract import DatasetPreparer

if typing.TYPE_CHECKING:
    from corerl_tools.prepare.dataset import PreparedSplit

_HELP = """{summary}.

SOURCE is a JSONL or parquet file, a folder with train and test files, or a hub name (owner/name, or
owner/name:configuration). Without SOURCE, the data set is read from the hub under its own name. Generated data sets
take no SOURCE."""


class _Preparers(click.Group):
    """The dataset preparers of all plugins; a preparer is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in _registry(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        return _command(_registry(ctx), _registry(ctx).get(cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The preparers with their summaries; a name claimed by two plugins is shown with that error."""
        registry = _registry(ctx)
        with formatter.section("Data sets"):
            formatter.write_dl([(entry.name, registry.clash(entry.name) or entry.summary) for entry in registry])


@click.group(cls=_Preparers)
@plugin_options
def prepare(plugin: Sequence[str], disable_plugin: Sequence[str]) -> None:
    """Write the parquet files of a data set."""


for _option in prepare.params:
    _option.is_eager = True  # --help is eager too, and lists the preparers of --plugin


def _registry(ctx: click.Context) -> Registry[DatasetPreparer]:
    load, disable = (tuple(ctx.params.get(name) or ()) for name in ("plugin", "disable_plugin"))
    return load_plugins(load, disable).registries.dataset_preparers


def _command(registry: Registry[DatasetPreparer], entry: Entry[DatasetPreparer]) -> click.Command:
    """The sub-command of one preparer; the fields of its options dataclass are flags."""
    params: list[click.Parameter] = [
        click.Argument(["source"], required=False),
        click.Option(["--out"], required=True, type=click.Path(path_type=Path), help="Folder for the parquet files."),
        click.Option(
            ["--split"],
            type=click.Choice(["train", "test"]),
            help="Split of a single file; default: from the name of the file.",
        ),
    ]
    if declared := entry.load_options():
        hints = typing.get_type_hints(declared)
        params += [_flag(field, hints[field.name]) for field in entry.option_fields()]
    callback = functools.partial(_prepare, registry, entry.name)
    text = _HELP.format(summary=entry.summary[:1].upper() + entry.summary[1:])
    return click.Command(entry.name, params=params, callback=callback, help=text, short_help=entry.summary)


def _flag(field: dataclasses.Field[Any], hint: Any) -> click.Option:
    """A flag whose text is checked later, together with the other options."""
    default = "required" if field.default is dataclasses.MISSING else f"default: {field.default}"
    notes = ", ".join(filter(None, (default, range_label(field))))
    text = f"{field.metadata.get('help', '')}  [{notes}]"
    return click.Option([f"--{field.name.replace('_', '-')}", field.name], metavar=type_label(hint), help=text)


def _prepare(
    registry: Registry[DatasetPreparer],
    name: str,
    /,
    source: str | None,
    out: Path,
    split: str | None,
    **flags: str | None,
) -> None:
    given = {flag: value for flag, value in flags.items() if value is not None}
    preparer = registry.select({"name": name, **given}, name).load()()

    from corerl_tools.prepare.dataset import prepare_dataset

    splits, left_out = prepare_dataset(preparer, source, out, split)
    header = ("split", "read", "written", "dropped", "noted", "why")
    echo(table([header, *(line for each in splits for line in _lines(each))], indent=""))
    if left_out:
        echo(f"not read, named neither train nor test: {', '.join(left_out)}")
    echo(f"wrote {', '.join(str(out / f'{each.name}.parquet') for each in splits)}")


def _lines(split: "PreparedSplit") -> list[tuple[str, ...]]:
    """One line of counts, and one line for each reason."""
    from corerl.data.report import name_places

    dropped = split.read - len(split.rows)
    noted = sum(map(len, split.noted.values()))
    lines: list[tuple[str, ...]] = [(split.name, str(split.read), str(len(split.rows)), str(dropped), str(noted), "")]
    for reason, places in split.dropped.items():
        lines.append(("", "", "", str(len(places)), "", f"{reason} ({name_places(places)})"))
    for note, places in split.noted.items():
        lines.append(("", "", "", "", str(len(places)), f"{note} ({name_places(places)})"))
    return lines
