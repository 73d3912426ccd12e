"""``corerl config show``: every key of a training config."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import click
import yaml  # type: ignore[import-untyped]

from corerl.cli.common import plugin_options, read_train_values
from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.terminal.output import echo
from corerl_tools.common import range_label, split_config_file, trust_option, type_label

_COMMENT_COLUMN = 48


@click.command()
@click.argument("arguments", nargs=-1, metavar="[FILE] [KEY=VALUE]...")
@trust_option
@plugin_options
def show(arguments: tuple[str, ...], plugin: tuple[str, ...], disable_plugin: tuple[str, ...]) -> None:
    """Print the resolved configuration as YAML, with the help of each key; without FILE, the defaults."""
    file, overrides = split_config_file(arguments)
    given, plugins = read_train_values(file, overrides, plugin, disable_plugin)
    values = typed.fill(TrainConfig, given, plugins.explain_key)
    if not _is_incomplete(values):
        typed.build(TrainConfig, values)
    echo("\n".join(commented(TrainConfig, values)))


def _is_incomplete(values: Mapping[str, Any]) -> bool:
    """Whether a required value is missing."""
    return any(_is_incomplete(value) if isinstance(value, Mapping) else value == "???" for value in values.values())


def commented(cls: type[Any], values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """The lines of ``values`` as YAML, in the order of the dataclass ``cls``, each followed by the help of its key."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint, value = hints[field.name], values[field.name]
        if dataclasses.is_dataclass(hint):
            yield _line(f"{indent}{field.name}:", (hint.__doc__ or "").strip())
            yield from commented(typing.cast(type[Any], hint), value, indent + "  ")
        else:
            yield _line(f"{indent}{field.name}: {_flow(value)}", _help(field, hint, value))


def _help(field: "dataclasses.Field[Any]", hint: Any, value: Any) -> str:
    choices = type_label(hint) if typing.get_origin(hint) is typing.Literal else ""
    required = "required" if value == "???" else ""
    return "; ".join(part for part in (required, field.metadata.get("help", ""), choices, range_label(field)) if part)


def _line(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_COLUMN}} # {comment}" if comment else text


def _flow(value: Any) -> str:
    """A value as YAML in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
