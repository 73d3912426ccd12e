"""``corerl rollouts show``."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from corerl.errors import DataError, RequestError
from corerl.files import reading
from corerl.terminal import echo

ORDERS = ("row", "score", "-score", "length", "turns", "seconds")
PIPED_WIDTH = 120


@click.command()
@click.argument("run", type=click.Path(exists=True, path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="[default: the last one with sample rollouts]")
@click.option("--row", type=click.IntRange(min=0), help="Show the response of this row alone.")
@click.option(
    "--sort", type=click.Choice(ORDERS), default="row", show_default=True, help="'-score': lowest score first."
)
@click.option("--most", type=click.IntRange(min=1), default=3, show_default=True, help="Largest number of responses.")
@click.option(
    "--characters", type=click.IntRange(min=100), default=2000, show_default=True, help="Largest length of a text."
)
def show(run: Path, step: int | None, row: int | None, sort: str, most: int, characters: int) -> None:
    """Print sample rollouts of the run in the folder RUN as conversations: turns, tools, branches, rewards, times.

    RUN may also be a file of responses. '--sort length', 'turns' and 'seconds' begin with the largest.
    """
    from rich.console import Console

    from corerl_tools.episodes.printing import ConversationPrinter

    file = run if run.is_file() else rollouts_file(run, step)
    rows, count = chosen(file, row, sort, most)
    printer = ConversationPrinter(characters)
    console = Console(width=None if sys.stdout and sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    for number, values in rows:
        with reading(file):
            parts = printer.response(title(file, number, values), values)
        console.print(parts)
        console.print()
    if row is None:
        echo(f"{len(rows)} of {count} responses of {file}")


def rollouts_file(run: Path, step: int | None) -> Path:
    """The sample rollouts of a step, or of the last step that has some.

    Raises:
        RequestError: the run has none.
    """
    folder = run / "rollouts"
    files = sorted(folder.glob("step_*.parquet"))
    if not files:
        raise RequestError(f"{run} has no sample rollouts: train with trainer.log_rollouts_freq=1 or more")
    if step is None:
        return files[-1]
    file = folder / f"step_{step:06d}.parquet"
    if file not in files:
        steps = [int(each.stem.removeprefix("step_")) for each in files]
        raise RequestError(f"{run} has no sample rollouts of step {step}: the steps are {_ranges(steps)}")
    return file


def chosen(file: Path, row: int | None, sort: str, most: int) -> tuple[list[tuple[int, Mapping[str, Any]]], int]:
    """(number, response) of those that are shown, and how many the file has.

    Raises:
        DataError: the file is damaged.
        RequestError: it has no such row.
    """
    from corerl_tools.evaluation.files import read_rows

    rows = [(number, values) for number, (_, values) in enumerate(read_rows(str(file)))]
    if row is not None:
        if row >= len(rows):
            raise RequestError(f"{file} has rows 0 to {len(rows) - 1}, not {row}")
        return [rows[row]], len(rows)
    try:
        return sorted(rows, key=lambda each: _place(each[1], sort))[:most], len(rows)
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{file}: a response has a value of another type: {error}") from error


def title(file: Path, number: int, row: Mapping[str, Any]) -> str:
    """The line above a response."""
    score = row.get("score")
    known = [
        ("group", row.get("group")),
        ("score", "none" if score is None else f"{score:g}"),
        ("", row.get("data_source")),
    ]
    facts = [f"{name} {value}".strip() for name, value in known if value is not None]
    step = file.stem.removeprefix("step_")
    return " · ".join([f"step {int(step)}" if step.isdecimal() else file.name, f"row {number}", *facts])


def _place(row: Mapping[str, Any], sort: str) -> float:
    score = row.get("score")
    match sort:
        case "row":
            return 0.0
        case "score" | "-score":
            sign = 1 if sort == "-score" else -1
            return float("inf") if score is None else sign * float(score)
        case "length":
            return -float(row.get("response_length") or 0)
        case "turns":
            return -float(len(row.get("requests") or ()))
    return -float((row.get("seconds") or {}).get("played", 0.0))


def _ranges(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 6 else f"{steps[0]}, {steps[1]}, …, {steps[-1]}"
