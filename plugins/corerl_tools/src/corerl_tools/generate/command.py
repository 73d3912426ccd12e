"""``corerl generate``."""

from pathlib import Path
from typing import Any

import click

from corerl.cli.common import plain_option, plugin_options
from corerl.terminal import echo
from corerl_tools.common import split_config_file


@click.command()
@click.argument("arguments", nargs=-1, metavar="[CONFIG] [KEY=VALUE]...")
@click.option("--model", metavar="PATH", help="Sets model.path: folder or hub name of the model.")
@click.option("--data", "files", multiple=True, metavar="FILE", help="Parquet file of prompts; may be repeated.")
@click.option(
    "--n", type=click.IntRange(min=1), help="Sets rollout.n: responses per prompt.  [default: 1 without CONFIG]"
)
@click.option("--greedy", is_flag=True, help="One greedy response to each prompt.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Parquet file to write, with one row per response."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="Prompts in a part.")
@click.option("--log-probs", is_flag=True, help="Also write token ids and their log-probs.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file of other responses.")
@plain_option
@plugin_options
def generate(
    arguments: tuple[str, ...],
    model: str | None,
    files: tuple[str, ...],
    n: int | None,
    greedy: bool,
    out: Path,
    batch_size: int,
    log_probs: bool,
    overwrite: bool,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> None:
    """Sample responses to prompts, with any rollout backend.

    Uses model, data, rollout, runtime, actor.device and trainer.seed of the training config CONFIG. Without --data,
    reads data.val_files. If it is interrupted, run the same command again: finished parts are kept.
    """
    from corerl.cli.common import read_train_values
    from corerl.config import typed
    from corerl.contracts.config import TrainConfig
    from corerl_check.rules import check_sampling

    file, overrides = split_config_file(arguments)
    values, plugins = read_train_values(file, overrides, plugin, disable_plugin)
    _set(values, "model", "path", model)
    _set(values, "data", "val_files", list(files) or None)
    _set(values, "rollout", "n", n)
    if file is None and "n" not in (values.get("rollout") or {}):
        _set(values, "rollout", "n", 1)
    if (options := (values.get("rollout") or {}).get("options")) and options.get("load_format") == "dummy":
        del options["load_format"]  # it means that a trainer sends the weights; there is none
    config = typed.build(TrainConfig, values, explain_key=plugins.explain_key)
    check_sampling(config)

    from corerl_tools.generate.generation import generate as run_generation
    from corerl_tools.generate.generation import plan_generation

    plan = plan_generation(config, plugins, out, greedy=greedy, batch_size=batch_size, log_probs=log_probs)
    echo(str(plan))
    echo(f"{run_generation(plan, overwrite=overwrite)}: {len(plan.prompts) * plan.sampling.n} responses")


def _set(values: dict[str, Any], section: str, key: str, value: Any) -> None:
    """Replace a config value by the value of a flag."""
    if value is not None:
        values[section] = {**(values.get(section) or {}), key: value}
