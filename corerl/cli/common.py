"""What several commands share: the options about plugins, loading a training config, tables."""

import dataclasses
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from corerl.plugins import Plugins, load_plugins
from corerl.terminal.output import one_line

if typing.TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig
    from corerl.registry.parts import Parts

F = TypeVar("F", bound=Callable[..., Any])

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_PIPED_WIDTH = 10_000


def plugin_options(command: F) -> F:
    """Add ``--plugin PATH`` and ``--disable-plugin NAME``: tuples of strings, ``plugin`` and ``disable_plugin``."""
    load = click.option("--plugin", multiple=True, metavar="PATH", help="Also load this Python file with hooks.")
    disable = click.option("--disable-plugin", multiple=True, metavar="NAME", help="Leave this distribution out.")
    return load(disable(command))


def trust_option(command: F) -> F:
    """Add ``--trust``: a bool, ``trust``."""
    text = "Run code named in the file: plugins.load, module:attribute, ./file.py:attribute, interpreters."
    return click.option("--trust", is_flag=True, help=text)(command)


def plain_option(command: F) -> F:
    """Add ``--plain``: no live view, on a terminal too."""

    def switch(context: click.Context, parameter: click.Parameter, plain: bool) -> None:
        if plain:
            from corerl.terminal.consoles import plain_output

            context.with_resource(plain_output())

    text = "Print lines instead of a live view, also on a terminal."
    return click.option("--plain", is_flag=True, expose_value=False, callback=switch, help=text)(command)


def reward_options(command: F) -> F:
    """Add ``--config FILE`` and ``--scorer NAME``: who scores; ``config_file`` and ``scorer``."""
    config = click.option(
        "--config", "config_file", type=click.Path(path_type=Path), help="Training config with the section reward."
    )
    scorer = click.option(
        "--scorer", metavar="NAME", help="Scorer of all rows: a registered name or ./file.py:function."
    )
    return config(scorer(command))


class LoadedConfig(typing.NamedTuple):
    """A training config that passed every check that needs no data and no model."""

    config: "TrainConfig"
    parts: "Parts"
    plugins: Plugins


def load_train_config(
    file: Path | None, overrides: Sequence[str], plugin: Sequence[str] = (), disable_plugin: Sequence[str] = ()
) -> LoadedConfig:
    """Read a training config, load its plugins, look up its parts, check the rules between its keys.

    Args:
        plugin, disable_plugin: of the command line; they are added to the config's own, so that the resolved config of
            the run tells about both.

    Raises:
        RequestError: anything is wrong with it.
    """
    from corerl.config import typed
    from corerl.contracts.config import TrainConfig
    from corerl.registry.parts import resolve_parts
    from corerl.registry.rules import check

    values, plugins = read_train_values(file, overrides, plugin, disable_plugin)
    config = typed.build(TrainConfig, values, explain_key=plugins.explain_key)
    parts = resolve_parts(config, plugins.registries)
    check(config, parts)
    return LoadedConfig(config, parts, plugins)


def read_train_values(
    file: Path | None,
    overrides: Sequence[str],
    plugin: Sequence[str] = (),
    disable_plugin: Sequence[str] = (),
    *,
    trust: bool = True,
) -> tuple[dict[str, Any], Plugins]:
    """The plain values of a training, from preset, file and overrides and without aliases, and the plugins of it.

    Args:
        trust: false: none of the code that the config names is run; ``plugin``, of the command line, is loaded.

    Raises:
        RequestError: something cannot be read, the preset or a plugin is not there, or an alias and its key have
            different values.
    """
    from corerl.config import typed
    from corerl.config.aliases import canonical
    from corerl.config.load import read
    from corerl.contracts.config import PluginsConfig, TrainConfig
    from corerl.registry.presets import read_over_preset

    values = read(TrainConfig, file, overrides)
    section = values.get("plugins")
    wanted = typed.build(PluginsConfig, {} if section is None else section, "plugins")
    load = list(dict.fromkeys([*wanted.load, *plugin]))
    disable = list(dict.fromkeys([*wanted.disable, *disable_plugin]))
    if trust:
        plugins = load_plugins(tuple(load), tuple(disable))
    else:
        plugins = load_plugins(tuple(plugin), tuple(disable), tuple(wanted.load))
    if values.get("preset") is not None:
        preset = plugins.registries.presets.select(values["preset"], "preset").load()()
        values = read_over_preset(preset, file, overrides, plugins.config_aliases())
    else:
        values = canonical(TrainConfig, values, plugins.config_aliases())
    if load or disable:
        values["plugins"] = {"load": load, "disable": disable}
    return values, plugins


def load_reward_config(
    file: Path | None,
    overrides: Sequence[str],
    scorer: str | None,
    plugin: Sequence[str] = (),
    disable_plugin: Sequence[str] = (),
    *,
    trust: bool = True,
) -> tuple["TrainConfig", Plugins]:
    """A training config of which only ``reward`` and ``plugins`` are used, so that no model need be named.

    Args:
        scorer: scores every row, whatever the config says.
        trust: as for :func:`read_train_values`.

    Raises:
        RequestError: something in the config is wrong.
    """
    from corerl.config import typed
    from corerl.contracts.config import TrainConfig

    values, plugins = read_train_values(file, overrides, plugin, disable_plugin, trust=trust)
    if not values.get("model"):
        values["model"] = {"path": ""}
    if scorer is not None:
        reward = values.get("reward") or {}
        values["reward"] = {key: value for key, value in reward.items() if key != "scorers"} | {"scorer": scorer}
    return typed.build(TrainConfig, values, explain_key=plugins.explain_key), plugins


def split_config_file(arguments: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """A leading argument without '=' is the file."""
    if arguments and "=" not in arguments[0]:
        return Path(arguments[0]), arguments[1:]
    return None, arguments


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
    rows = [[one_line(cell) for cell in row] for row in rows]
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
