"""What several commands share: the options about plugins, loading a training config, tables."""

import dataclasses
import functools
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from corerl.config.schema import PluginsConfig
from corerl.plugins import Plugins, load_plugins

if typing.TYPE_CHECKING:
    from corerl.config.parts import Parts
    from corerl.config.schema import TrainConfig

R = TypeVar("R")

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_PIPED_WIDTH = 10_000


def plugin_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--plugin PATH`` and ``--disable-plugin NAME``; the command is called with ``plugins=PluginsConfig(…)``."""

    @click.option("--plugin", "load", multiple=True, metavar="PATH", help="Also load this Python file with hooks.")
    @click.option("--disable-plugin", "disable", multiple=True, metavar="NAME", help="Leave this distribution out.")
    @functools.wraps(command)
    def wrapped(*args: Any, load: tuple[str, ...], disable: tuple[str, ...], **options: Any) -> R:
        return command(*args, plugins=PluginsConfig(list(load), list(disable)), **options)

    return wrapped


def plugins_for(configured: PluginsConfig, chosen: PluginsConfig) -> Plugins:
    """The plugins that a config asks for together with those of the command line.

    ``configured`` is extended by ``chosen``, so that the run's resolved config tells about both.
    """
    configured.load = list(dict.fromkeys([*configured.load, *chosen.load]))
    configured.disable = list(dict.fromkeys([*configured.disable, *chosen.disable]))
    return load_plugins(tuple(configured.load), tuple(configured.disable))


class LoadedConfig(typing.NamedTuple):
    """A training config that passed every check that needs no data and no model."""

    config: "TrainConfig"
    parts: "Parts"
    plugins: Plugins


def load_train_config(file: Path | None, overrides: Sequence[str], chosen: PluginsConfig) -> LoadedConfig:
    """Read a training config, load its plugins, look up its parts, check the rules between its keys.

    Raises:
        RequestError: anything is wrong with it.
    """
    from corerl.config.checks import check
    from corerl.config.load import load
    from corerl.config.parts import resolve_parts
    from corerl.config.schema import TrainConfig

    config, _ = load(TrainConfig, file, overrides)
    plugins = plugins_for(config.plugins, chosen)
    parts = resolve_parts(config, plugins.registries)
    check(config, parts)
    return LoadedConfig(config, parts, plugins)


def type_label(hint: Any) -> str:
    """A type as one writes it, choices as ``a|b``.

    >>> type_label(typing.Literal["auto", "cpu"])
    'auto|cpu'
    """
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(map(str, typing.get_args(hint)))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def range_label(field: "dataclasses.Field[Any]") -> str:
    """The range of an option, e.g. ``>= 0, < 1``; '' when it has none."""
    return ", ".join(f"{_BOUNDS[name]} {bound}" for name, bound in field.metadata.get("bounds", {}).items())


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Columns of text. The last one is wrapped to the terminal; in a pipe every row is one line."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPED_WIDTH
    lines = []
    for row in rows:
        start = indent + "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        hanging = " " * min(len(start), max(len(indent) + 4, width // 2))
        lines.append(
            textwrap.fill(row[-1], width, initial_indent=start, subsequent_indent=hanging).rstrip() or start.rstrip()
        )
    return "\n".join(lines)
