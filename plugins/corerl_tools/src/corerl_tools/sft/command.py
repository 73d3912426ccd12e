"""``corerl sft``."""

from pathlib import Path

import click

from corerl.cli.common import plain_option, plugin_options
from corerl.plugins import load_plugins
from corerl.terminal import echo


@click.command()
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@plain_option
@plugin_options
def sft(
    config_file: Path, overrides: tuple[str, ...], plugin: tuple[str, ...], disable_plugin: tuple[str, ...]
) -> None:
    """Fine-tune a model on conversations, by supervised learning.

    CONFIG_FILE is YAML; KEY=VALUE changes single keys. The data are parquet or JSONL files with a column 'messages', a
    list of {role, content}; the model learns the messages of the assistant.
    """
    from corerl.config.load import load
    from corerl_tools.sft.config import SftConfig

    config = load(SftConfig, config_file, overrides)
    config.plugins.load += plugin
    config.plugins.disable += disable_plugin
    plugins = load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))

    from corerl_tools.sft.training import run_sft

    echo(f"model: {run_sft(config, plugins)}")
