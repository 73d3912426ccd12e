"""Shared by the commands: options of the command line, the section ``reward`` of a config, tables."""

import dataclasses
import functools
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml  # type: ignore[import-untyped]

from corerl.cli.common import read_train_values
from corerl.errors import ConfigError
from corerl.plugins import Plugins
from corerl.registry.modules import untrusted
from corerl.terminal.output import printable

if typing.TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig

F = TypeVar("F", bound=Callable[..., Any])

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_PIPED_WIDTH = 10_000


def trust_option(command: F) -> F:
    """Add ``--trust``. Without it, and with a config, no code runs that is not installed or named by ``--plugin``."""
    text = "Run code named in the file: plugins.load, module:attribute, ./file.py:attribute, interpreters."

    @functools.wraps(command)
    def limited(*arguments: Any, trust: bool, **given: Any) -> Any:
        has_config = given.get("config_file", "") is not None
        with untrusted(given.get("plugin", ())) if has_config and not trust else nullcontext():
            return command(*arguments, **given)

    return typing.cast(F, click.option("--trust", is_flag=True, help=text)(limited))


def reward_options(command: F) -> F:
    """Add ``--config FILE`` and ``--scorer NAME``: the parameters ``config_file`` and ``scorer``."""
    config = click.option(
        "--config", "config_file", type=click.Path(path_type=Path), help="Training config with the section reward."
    )
    scorer = click.option(
        "--scorer",
        metavar="NAME",
        help="Scorer of all rows: a registered name, ./file.py:function, or '{name: NAME, option: value}'.",
    )
    return config(scorer(command))


def load_reward_config(
    file: Path | None,
    overrides: Sequence[str],
    scorer: str | None,
    plugin: Sequence[str] = (),
    disable_plugin: Sequence[str] = (),
) -> tuple["TrainConfig", Plugins]:
    """Load a training config for its ``reward`` and ``plugins`` only, so that no model must be named.

    Args:
        scorer: scores every row, in place of the config's scorers.

    Raises:
        RequestError: the config is wrong.
    """
    from corerl.config import typed
    from corerl.contracts.config import TrainConfig

    values, plugins = read_train_values(file, overrides, plugin, disable_plugin)
    if not values.get("model"):
        values["model"] = {"path": ""}
    if scorer is not None:
        reward = values.get("reward") or {}
        own = {key: value for key, value in reward.items() if key != "scorers"}
        values["reward"] = own | {"scorer": _scorer(scorer)}
    return typed.build(TrainConfig, values, explain_key=plugins.explain_key), plugins


def scorer_name(written: str) -> str:
    """The name in ``--scorer``, with or without options."""
    scorer = _scorer(written)
    return str(scorer.get("name", written)) if isinstance(scorer, dict) else written


def _scorer(written: str) -> Any:
    """A scorer as in a config: a name, or a mapping with its options."""
    if not written.lstrip().startswith("{"):
        return written
    try:
        return yaml.safe_load(written)
    except yaml.YAMLError as error:
        raise ConfigError("--scorer", f"must be a name or '{{name: NAME, option: value}}', not {written!r}") from error


def type_label(hint: Any) -> str:
    """A type in short form, choices as ``a|b``.

    >>> type_label(typing.Literal["auto", "cpu"])
    'auto|cpu'
    """
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(map(str, typing.get_args(hint)))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def range_label(field: "dataclasses.Field[Any]") -> str:
    """The range of an option, e.g. ``>= 0, < 1``; '' if it has none."""
    return ", ".join(f"{_BOUNDS[name]} {bound}" for name, bound in field.metadata.get("bounds", {}).items())


def _one_line(text: str) -> str:
    """``text`` with control characters, line feeds and tabs as escapes."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Columns of text. The last column is wrapped to the terminal; in a pipe every row is one line."""
    if not rows:
        return ""
    rows = [[_one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    width = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else _PIPED_WIDTH
    lines = []
    for row in rows:
        start = indent + "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        hanging = " " * min(len(start), max(len(indent) + 4, width // 2))
        lines.append(
            textwrap.fill(row[-1], width, initial_indent=start, subsequent_indent=hanging).rstrip() or start.rstrip()
        )
    return "\n".join(lines)


def split_config_file(arguments: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """A leading argument without '=' is the file."""
    if arguments and "=" not in arguments[0]:
        return Path(arguments[0]), arguments[1:]
    return None, arguments
