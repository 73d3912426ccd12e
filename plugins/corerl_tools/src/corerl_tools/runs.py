"""``corerl runs``."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import click

from corerl.errors import RequestError
from corerl.files import reading
from corerl.terminal import echo
from corerl_tools.common import table

MARKS = ("plugins.json", "status.json", "metrics.jsonl")
"""a folder with one of them is that of a run"""
RECORDS = 1000
"""records of a run that are searched for the last reward"""

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default="runs")
def runs(folder: Path) -> None:
    """List the runs below FOLDER (default: runs), the newest last.

    State: running, finished, stopped (on request before the last step), failed (with the error) or killed (the process
    ended without a status). Reward: the last critic/score/mean. Val: the last val-core metric.
    """
    found = sorted(run_folders(folder), key=_begun)
    if not found:
        echo(f"no run below {folder}")
        return
    header = ("run", "state", "step", "reward", "val", "started", "for", "")
    echo(table([header, *(_row_or_reason(run, folder) for run in found)], indent=""))


def run_folders(folder: Path) -> Iterator[Path]:
    """Every folder of a run from ``folder`` down, and what may not be read; a run contains no other runs."""
    if any(os.path.lexists(folder / name) for name in MARKS):
        yield folder
        return
    try:
        found = sorted(folder.iterdir())
    except PermissionError:
        found = []
        yield folder
    for path in found:
        if path.is_dir() and not path.is_symlink():
            yield from run_folders(path)


def _begun(run: Path) -> float:
    """When the run wrote its config; of a damaged run, when its folder changed."""
    with suppress(OSError):
        return (run / "config.yaml").stat().st_mtime
    return run.stat().st_mtime


def _row_or_reason(run: Path, folder: Path) -> tuple[str, ...]:
    """The line of a run; for a damaged run, the reason."""
    try:
        with reading(run):
            return row(run, folder)
    except RequestError as error:
        return str(run.relative_to(folder)), "unreadable", "", "", "", "", "", str(error)


def row(run: Path, folder: Path) -> tuple[str, ...]:
    """One line of the list."""
    from corerl_tools.metrics_tail import last_step, records_backwards
    from corerl_tools.status import read_status

    metrics = run / "metrics.jsonl"
    reward, validation = "", ""
    for record in islice(records_backwards(metrics), RECORDS):
        if not reward and "critic/score/mean" in record:
            reward = f"{record['critic/score/mean']:.3f}"
        if not validation:
            validation = next((f"{value:.3f}" for name, value in record.items() if name.startswith("val-core/")), "")
        if reward and validation:
            break
    status, step = read_status(run), max(0, last_step(metrics))
    name = str(run.relative_to(folder)) if run != folder else str(run)
    if status is None:
        return name, "unknown", str(step), reward, validation, "", "", ""
    changed = metrics.stat().st_mtime if metrics.is_file() else status.started
    ended = status.ended or (time.time() if status.state == "running" else max(status.started, changed))
    remark = status.error or (f"{status.host}, process {status.pid}" if status.state == "running" else "")
    if status.restarts:
        remark = ", ".join(filter(None, [f"workers started again: {status.restarts}", remark]))
    age = time.time() - status.started
    started = f"{duration(age)} ago" if age >= 0 else f"in {duration(-age)}"  # by a clock that is ahead
    took, steps = duration(max(0.0, ended - status.started)), f"{step}/{status.total_steps}"
    return name, status.state, steps, reward, validation, started, took, remark


def duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> duration(7384)
    '2 h 3 min'
    """
    left, parts = int(seconds), list[str]()
    for unit, size in UNITS:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts[:2])
