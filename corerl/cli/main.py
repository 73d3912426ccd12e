"""``corerl``: the program. Commands are registered like parts and imported when called."""

import os
import re
import stat
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from corerl import __version__
from corerl.contracts.commands import Command
from corerl.contracts.surroundings import leave_launch, reach_directly
from corerl.errors import CoreRLError, Stopped, UnknownNameError
from corerl.plugins import load_plugins
from corerl.registry import Registry
from corerl.registry.base import known_names
from corerl.terminal.logs import escape_logs
from corerl.terminal.notices import show_life
from corerl.terminal.output import echo, escape_characters
from corerl.threads import outside_event_loop

INTERRUPTED = 130


class _Commands(click.Group):
    """The commands of the core and of all plugins; ``engine.install.x`` is called as ``corerl engine install x``."""

    prefix = ""
    """what the names of this group's commands begin with"""
    words: list[str]
    """what was typed, from this group's word on"""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        self.words = args
        return super().resolve_command(context, args)

    def list_commands(self, context: click.Context) -> list[str]:
        """The next word of each name."""
        entries = [entry.name for entry in _registry() if entry.name.startswith(self.prefix)]
        return list(dict.fromkeys(name.removeprefix(self.prefix).split(".")[0] for name in entries))

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        prefix = f"{self.prefix}{name}."
        if any(entry.name.startswith(prefix) for entry in _registry()):
            group = _Commands(name, no_args_is_help=True)
            group.prefix = prefix
            return group
        try:
            command = _registry().get(self._wanted(name)).load()
        except UnknownNameError as error:  # the words of a command, not its registered name
            raise UnknownNameError(re.sub(r"(?<=\w)\.(?=[\w-])", " ", str(error))) from None
        if not isinstance(command, click.Command):
            raise CoreRLError(f"command '{name}' is not a click command but {command!r}")
        return command

    def _wanted(self, name: str) -> str:
        """The name of a command; for the first word of commands that are not installed, one of their names."""
        wanted = self.prefix + name
        known = [] if wanted in _registry() else sorted(known_names("command"))
        typed = ".".join([self.prefix + self.words[0], *self.words[1:2]])
        return typed if typed in known else next((each for each in known if each.startswith(f"{wanted}.")), wanted)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their registered summaries; nothing is imported."""
        entries = [entry for entry in _registry() if entry.name.startswith(self.prefix)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (
                        entry.name.removeprefix(self.prefix).replace(".", " "),
                        _registry().clash(entry.name) or entry.summary,
                    )
                    for entry in entries
                ]
            )


def _registry() -> Registry[Command]:
    return load_plugins().registries.commands


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="corerl")
@click.pass_context
def corerl(context: click.Context) -> None:
    """Post-train language models with reinforcement learning.

    Start with `make quickstart`, or with `corerl config show` for every key of a training configuration.
    """
    if context.invoked_subcommand is None:
        echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 fine, 1 the run failed, 2 the request was wrong, 130 interrupted,
    143 stopped by SIGTERM. An event loop that runs in this thread, as in a notebook, waits.

    Args:
        arguments: of the command line; None for ``sys.argv[1:]``.
    """
    reach_directly()
    if others := leave_launch():
        listed = ", ".join(f"{name}={value}" for name, value in others.items())
        echo(f"{listed}: ignored, because this process is nobody's rank (a runtime starts the ranks)", err=True)
    try:
        with outside_event_loop():
            result = corerl.main(arguments, prog_name="corerl", standalone_mode=False)
    except CoreRLError as error:
        echo(f"error: {error}", err=True)
        return error.exit_code
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        echo(f"error: {error.format_message()}{_as_key(error)}{hint}", err=True)
        return error.exit_code
    except click.ClickException as error:
        echo(f"error: {error.format_message()}", err=True)
        return error.exit_code
    except Stopped as stopped:
        echo("stopped: the same command goes on from the last checkpoint", err=True)
        return 128 + stopped.signal
    except (click.Abort, KeyboardInterrupt):
        echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        _print_error(error)
        return 1
    return result if isinstance(result, int) else 0


def _print_error(error: Exception) -> None:
    """Print an unforeseen error: a known one with its remedy, one of the machine in one line."""
    from corerl.files import DISK, room  # shutil and tempfile, for errors alone

    of_disk = isinstance(error, OSError) and error.errno in DISK
    of_machine = of_disk or isinstance(error, PermissionError | MemoryError)
    if not of_machine:
        echo("".join(traceback.format_exception(error, limit=-6, chain=False)), err=True, nl=False)
    free = f" ({room(Path(str(error.filename)))})" if isinstance(error, OSError) and of_disk and error.filename else ""
    message = f"{error}{free}" if of_machine and isinstance(error, OSError) else type(error).__name__
    remedy = load_plugins().hook.remedy(error=error)
    if remedy is not None:
        echo(f"error: {message}: {remedy}", err=True)
    elif of_machine:
        echo(f"error: {message}", err=True)
    else:
        echo(
            "error: this is a bug in CoreRL or in one of its plugins; please report it with the lines above and "
            "what `corerl doctor` prints",
            err=True,
        )


def _as_key(error: click.UsageError) -> str:
    """The form of a config key that was written as an option."""
    name = error.option_name.lstrip("-") if isinstance(error, click.NoSuchOption) else ""
    return f" Keys of a config are written without dashes: {name}=VALUE." if "." in name or name == "preset" else ""


def main() -> NoReturn:
    """The console script ``corerl``."""
    escape_logs()
    escape_characters()
    show_life()
    os.umask(os.umask(0o077) | stat.S_IWOTH)  # a config in a run's folder may name code
    sys.exit(run())
