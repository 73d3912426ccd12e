"""``corerl simulate``."""

import json
from pathlib import Path

import click

from corerl.cli.common import plugin_options
from corerl.terminal import echo


@click.command()
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--gpus", type=click.IntRange(min=1), help="Compare layouts of this many GPUs; default: the config's own."
)
@click.option("--lengths", help="Tokens of responses: a number, lognormal:MEAN:SIGMA, or rollouts/ of an earlier run.")
@click.option("--prompt-tokens", type=click.IntRange(min=1), help="Tokens of a prompt; default: half of the longest.")
@click.option("--max-staleness", type=click.IntRange(min=0), default=1, show_default=True, help="Oldest weights tried.")
@click.option("--table", default="h200", show_default=True, help="Rates of the machine: a name or a YAML file.")
@click.option("--steps", type=click.IntRange(min=1), default=2, show_default=True, help="Steps that are averaged.")
@click.option("--most", type=click.IntRange(min=1), default=8, show_default=True, help="Layouts that are simulated.")
@click.option("--mps/--no-mps", default=True, show_default=True, help="NVIDIA's MPS, for engines beside training.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@plugin_options
def simulate(
    config_file: Path,
    overrides: tuple[str, ...],
    gpus: int | None,
    lengths: str | None,
    prompt_tokens: int | None,
    max_staleness: int,
    table: str,
    steps: int,
    most: int,
    mps: bool,
    as_json: bool,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> int:
    """Simulate training steps on N GPUs, and print the fastest layout that fits their memory.

    The stream of rollouts, its queue and the division of work are the real ones. The times of engines and trainers
    follow from rates that were measured on H200s (docs/simulate.md has the errors). No GPU, no weights and no data are
    needed: only the config of the model. Example:

        corerl simulate config.yaml --gpus 64 --lengths lognormal:800:0.8
    """
    from corerl_simulate.report import compared, printed

    found = compared(
        config_file,
        overrides,
        (plugin, disable_plugin),
        gpus=gpus,
        lengths=lengths,
        prompt=prompt_tokens,
        max_staleness=max_staleness,
        table=table,
        steps=steps,
        most=most,
        mps=mps,
    )
    if as_json:
        echo(json.dumps(found.as_dict(), indent=2))
    else:
        for line in printed(found):
            echo(line)
    return 0 if found.rows else 2
