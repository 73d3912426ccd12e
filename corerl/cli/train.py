"""``corerl train``."""

from pathlib import Path

import click

from corerl.cli.common import plugin_options
from corerl.plugins import load_plugins


@click.command()
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--dry-run", is_flag=True, help="Check the config and what it selects; load no model, write nothing.")
@plugin_options
def train(
    config_file: Path,
    overrides: tuple[str, ...],
    dry_run: bool,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> None:
    """Train a model by reinforcement learning.

    CONFIG_FILE is YAML; KEY=VALUE changes single keys, e.g. actor.optim.lr=1e-5. All keys: corerl config show.
    """
    from corerl.config.checks import check
    from corerl.config.load import load
    from corerl.config.parts import resolve_parts
    from corerl.config.schema import TrainConfig

    config = load(TrainConfig, config_file, overrides)
    config.plugins.load += plugin
    config.plugins.disable += disable_plugin
    plugins = load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))
    parts = resolve_parts(config, plugins.registries)
    check(config, parts)
    if dry_run:
        click.echo(f"{config_file}: ok")
        return
    from corerl.telemetry.report import report
    from corerl.trainer.build import train as run_training

    folder = run_training(config, parts, plugins)
    report(folder)
