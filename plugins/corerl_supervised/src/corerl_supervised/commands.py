"""``corerl sft``, ``corerl dpo`` and ``corerl reward-model``."""

import typing
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from corerl.cli.common import plain_option, plugin_options
from corerl.plugins import load_plugins
from corerl.terminal import echo

if typing.TYPE_CHECKING:
    from corerl_supervised.config import SupervisedConfig


def _arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    for add in (plugin_options, plain_option, click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")):
        command = add(command)
    return click.argument("config_file", type=click.Path(path_type=Path))(command)


@click.command()
@_arguments
def sft(**arguments: Any) -> None:
    """Fine-tune a model on conversations, by supervised learning.

    CONFIG_FILE is YAML; KEY=VALUE changes single keys. The data are parquet or JSONL files with a column 'messages', a
    list of {role, content}, or with the columns 'prompt' and 'response'; the model learns the assistant's messages.
    """
    from corerl_supervised.config import SftConfig

    _train(SftConfig, **arguments)


@click.command()
@_arguments
def dpo(**arguments: Any) -> None:
    """Train a model on preferences, by direct preference optimization.

    CONFIG_FILE is YAML; KEY=VALUE changes single keys, e.g. loss=ipo. The data are parquet or JSONL files with the
    columns 'prompt', 'chosen' and 'rejected', each a text or a list of {role, content}, and perhaps 'margin'.
    """
    from corerl_supervised.config import DpoConfig

    _train(DpoConfig, **arguments)


@click.command("reward-model")
@_arguments
def reward_model(**arguments: Any) -> None:
    """Train a reward model, which 'reward.manager: {name: model, path: OUTPUT}' takes.

    CONFIG_FILE is YAML; KEY=VALUE changes single keys. The data are as for 'corerl dpo'; with targets=scores, files
    with the columns 'prompt', 'response' and 'score'.
    """
    from corerl_supervised.config import RewardModelConfig

    _train(RewardModelConfig, **arguments)


def _train(
    cls: "type[SupervisedConfig]",
    config_file: Path,
    overrides: Sequence[str],
    plugin: Sequence[str],
    disable_plugin: Sequence[str],
) -> None:
    from corerl.config.load import load
    from corerl.secrets import plain_secrets
    from corerl.trainer.stopping import Stopping

    with Stopping().listen() as stopping:
        with stopping.abandonable():
            config = load(cls, config_file, overrides)
            config.plugins.load += plugin
            config.plugins.disable += disable_plugin
            for error in plain_secrets(asdict(config)):
                raise error
            plugins = load_plugins(tuple(config.plugins.load), tuple(config.plugins.disable))

            from corerl_supervised.plan import make_plan
            from corerl_supervised.run import train

            plan = make_plan(config, plugins)
            echo(str(plan))
        folder = train(plan, stopping)
    echo(f"model: {folder}")
