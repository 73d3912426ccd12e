"""``corerl check``."""

import json
from itertools import zip_longest
from pathlib import Path

import click

from corerl.cli.common import plugin_options
from corerl.terminal import echo
from corerl_tools.common import table, trust_option


@click.command()
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--gpus", type=click.IntRange(min=1), help="Plan for machines with this many GPUs each.")
@click.option("--gpu-memory-gb", type=click.FloatRange(min=0, min_open=True), help="Plan for GPUs with this many GiB.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@trust_option
@plugin_options
def check(
    config_file: Path,
    overrides: tuple[str, ...],
    gpus: int | None,
    gpu_memory_gb: float | None,
    as_json: bool,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> int:
    """Find the errors of a training before it starts, and estimate its memory.

    Checks keys, names, rules between keys, installed packages, devices, folders, tokenizer, data, scorers and memory by
    phase. Reads no weights and writes nothing. Without --trust, code named in CONFIG_FILE is not run. If there is an
    error, the exit code is 2.
    """
    from corerl_check import GIB, Machine
    from corerl_check.findings import counts
    from corerl_check.problems import PAGE
    from corerl_tools.check.memory_findings import table as memory_table
    from corerl_tools.check.run import check as run_check

    planned = None
    if gpus is not None or gpu_memory_gb is not None:
        planned = Machine(gpus or 1, None if gpu_memory_gb is None else gpu_memory_gb * GIB, planned=True)
    report = run_check(config_file, overrides, plugin, disable_plugin, planned)
    if as_json:
        echo(json.dumps(report.as_dict(), indent=2))
        return 0 if report.is_right else 2
    for each, following in zip_longest(report.findings, report.findings[1:]):
        echo(f"{each.severity}: {each.key + ': ' if each.key else ''}{each.sentence}")
        if each.remedy and each.severity != "note" and (following is None or following.remedy != each.remedy):
            echo(f"    {each.remedy}")
    if report.estimate is not None:
        echo("\nmemory at the peak of each phase, of one GPU or, on the CPU, of the machine, estimated")
        echo(table(memory_table(report.estimate)))
    if report.plan:
        echo(f"\n{report.plan}")
    summary = ", ".join(counts(report.findings)) or "nothing found"
    echo(f"{config_file}: {'ok' if report.is_right else 'wrong'} ({summary})")
    if not report.is_right:
        echo(f"known problems and what helps: {PAGE}")
    return 0 if report.is_right else 2
