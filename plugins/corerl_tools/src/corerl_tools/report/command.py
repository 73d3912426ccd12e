"""``corerl report``."""

from collections.abc import Sequence
from pathlib import Path

import click

from corerl.terminal import echo

SAMPLES = 5000
RUN = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=RUN)
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="[default: RUN/report.html of the first run]"
)
@click.option(
    "--samples", type=click.IntRange(min=0), default=SAMPLES, show_default=True, help="Largest number of responses."
)
def report(runs: tuple[Path, ...], out: Path | None, samples: int) -> None:
    """Write one HTML page with the curves, timing, samples and configuration of the runs in the folders RUN.

    The page needs no network and no server. The scores are also printed.
    """
    make_report(runs, out, samples)


def make_report(runs: Sequence[Path], out: Path | None = None, samples: int = SAMPLES) -> None:
    """Print the scores of the runs and write the page, by default into the first run's folder."""
    from corerl_tools.report.page import write_page
    from corerl_tools.report.runs import read_records, read_settings, run_names
    from corerl_tools.report.terminal import summary

    given, runs = runs, [run for run in runs if _has_metrics(run)] or runs
    for run in given:
        if run not in runs:  # a shell's * finds data beside runs, and runs that failed at once
            echo(f"{run} is left out: it holds no metrics.jsonl of a run")
    records = [read_records(run) for run in runs]
    for name, run, of_run in zip(run_names(runs), runs, records, strict=True):
        echo(summary(name, of_run, read_settings(run)))
    path = out or runs[0] / "report.html"
    write_page(path, runs, records, samples)
    echo(f"report: {path}")


def _has_metrics(run: Path) -> bool:
    file = run / "metrics.jsonl"
    return file.is_file() and file.stat().st_size > 0
