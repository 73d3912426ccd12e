"""Shared parts of commands: the options about plugins, loading of a training config."""

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from corerl.contracts.checks import CheckedOptions
from corerl.errors import PluginError, RequestError, UntrustedError
from corerl.plugins import Plugins, load_plugins
from corerl.secrets import plain_secrets

if typing.TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig
    from corerl.registry.parts import Parts

F = TypeVar("F", bound=Callable[..., Any])


def plugin_options(command: F) -> F:
    """Add ``--plugin PATH`` and ``--disable-plugin NAME``: tuples of strings, ``plugin`` and ``disable_plugin``."""
    load = click.option("--plugin", multiple=True, metavar="PATH", help="Also load this Python file with hooks.")
    disable = click.option("--disable-plugin", multiple=True, metavar="NAME", help="Leave this distribution out.")
    return load(disable(command))


def plain_option(command: F) -> F:
    """Add ``--plain``: no live view on a terminal."""

    def switch(context: click.Context, parameter: click.Parameter, plain: bool) -> None:
        if plain:
            from corerl.terminal.consoles import plain_output

            context.with_resource(plain_output())

    text = "Print lines instead of a live view, also on a terminal."
    return click.option("--plain", is_flag=True, expose_value=False, callback=switch, help=text)(command)


class LoadedConfig(typing.NamedTuple):
    """A training config after all checks without data and model."""

    config: "TrainConfig"
    parts: "Parts"
    plugins: Plugins


def load_train_config(
    file: Path | None, overrides: Sequence[str], plugin: Sequence[str] = (), disable_plugin: Sequence[str] = ()
) -> LoadedConfig:
    """Read a training config, load its plugins, select its parts, check the rules between its keys.

    Args:
        plugin, disable_plugin: of the command line, in addition to the config's; the resolved config has both.

    Raises:
        RequestError: the config is wrong.
    """
    from corerl.config import typed
    from corerl.contracts.config import TrainConfig
    from corerl.registry.parts import resolve_parts

    values, plugins = read_train_values(file, overrides, plugin, disable_plugin)
    config = typed.build(TrainConfig, values, explain_key=plugins.explain_key)
    parts = resolve_parts(config, plugins.registries)
    for error in violations(config, parts, plugins):
        raise error
    return LoadedConfig(config, parts, plugins)


def violations(config: "TrainConfig", parts: "Parts", plugins: Plugins) -> Iterator[RequestError]:
    """An error for every secret, for the first broken rule of each part, and for those that plugins find.

    Rules about options of code that must not run are left out.
    """
    from corerl.trainer.makers import missing_makers

    yield from plain_secrets(asdict(config))
    for key, part in parts.selected():
        try:
            if isinstance(part.options, CheckedOptions):
                part.options.check(key, config)
        except UntrustedError:
            pass
        except RequestError as error:
            yield error
    yield from missing_makers(config, parts, plugins)
    for errors in plugins.hook.config_errors(config=config, parts=parts):
        with suppress(UntrustedError):
            yield from errors


def read_train_values(
    file: Path | None,
    overrides: Sequence[str],
    plugin: Sequence[str] = (),
    disable_plugin: Sequence[str] = (),
) -> tuple[dict[str, Any], Plugins]:
    """The plain values of a training, from preset, file and overrides and without aliases, and its plugins.

    Raises:
        RequestError: an unreadable file, a missing preset or plugin, or different values of an alias and its key.
    """
    from corerl.config import typed
    from corerl.config.load import read
    from corerl.contracts.config import PluginsConfig, TrainConfig

    values = read(TrainConfig, file, overrides)
    section = values.get("plugins")
    wanted = typed.build(PluginsConfig, {} if section is None else section, "plugins")
    load = list(dict.fromkeys([*wanted.load, *plugin]))
    disable = list(dict.fromkeys([*wanted.disable, *disable_plugin]))
    plugins = load_plugins(tuple(load), tuple(disable))
    preset: Mapping[str, Any] = {}
    if values.get("preset") is not None:
        preset = plugins.registries.presets.select(values["preset"], "preset").load()()
        if not isinstance(preset, Mapping):
            raise PluginError(f"preset '{values['preset']}' returned {preset!r}, and must return a mapping of sections")
    aliases = plugins.config_aliases()
    known = plugins.hook.read_config(file=file, overrides=overrides, preset=preset, aliases=aliases)
    values = read(TrainConfig, file, overrides, preset) if known is None else known
    if load or disable:
        values["plugins"] = {"load": load, "disable": disable}
    return values, plugins
