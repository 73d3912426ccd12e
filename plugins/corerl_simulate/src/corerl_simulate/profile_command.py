"""``corerl profile``."""

from pathlib import Path

import click

from corerl.cli.common import load_train_config, plugin_options
from corerl.terminal import echo


@click.command()
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File of the table, .yaml.")
@click.option("--name", help="Name of the table; default: that of the device.")
@plugin_options
def profile(
    config_file: Path,
    overrides: tuple[str, ...],
    out: Path,
    name: str | None,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> int:
    """Measure this machine for `corerl simulate`: a table of rates of the config's model, strategy and engine.

    Policy and engines start as for a training, without data, and are measured for a minute or two: log-probs, updates,
    generation, weights. Rates that one machine does not show, such as those of links between hosts, are those of H200s.
    Example:

        corerl profile config.yaml --out mine.yaml && corerl simulate config.yaml --table mine.yaml
    """
    from corerl_simulate.profiling import profile as run

    for line in run(load_train_config(config_file, overrides, plugin, disable_plugin), out, name):
        echo(line)
    return 0
