"""``corerl train``."""

from pathlib import Path

import click

from corerl.cli.common import load_train_config, plain_option, plugin_options
from corerl.terminal.output import echo


@click.command()
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@plain_option
@plugin_options
def train(
    config_file: Path,
    overrides: tuple[str, ...],
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> None:
    """Train a model by reinforcement learning.

    CONFIG_FILE is YAML; KEY=VALUE changes single keys, e.g. actor.optim.lr=1e-5. `corerl config show` prints
    all keys; `corerl check` finds errors before the start.
    """
    from corerl.errors import Stopped
    from corerl.trainer.stopping import Stopping

    with Stopping().listen() as stopping:
        with stopping.abandonable():
            config, parts, plugins = load_train_config(config_file, overrides, plugin, disable_plugin)

            from corerl.trainer.plan import make_plan

            plan = make_plan(config, parts, plugins)
            echo(str(plan))

            from corerl.trainer.build import train as run_training

        folder = run_training(plan, stopping)
        try:
            with stopping.abandonable():
                plugins.hook.training_finished(folder=folder)
        except Stopped:  # the run is done all the same: nothing is to start it again
            echo(f"the run is done; corerl report {folder} makes the report that is left out", err=True)
