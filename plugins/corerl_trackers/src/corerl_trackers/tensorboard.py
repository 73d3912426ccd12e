"""Tracker ``tensorboard``: event files, written by torch's own writer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from corerl.contracts.trackers import TrackedRun
from corerl_trackers import valid
from corerl_trackers.options import TensorboardOptions
from corerl_trackers.valid import Names


class TensorboardTracker:
    """Scalars, the config as text, and samples as a Markdown table.

    After a resume, values of steps after the checkpoint are hidden.
    """

    def __init__(self, run: TrackedRun, options: TensorboardOptions) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._names = Names()
        folder = Path(options.dir).expanduser() if options.dir else run.folder / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=None if run.resumed_from is None else run.resumed_from + 1)
        if run.resumed_from is None:
            text = json.dumps(run.config, indent=2)
            self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in self._names.numbers(metrics).items():
            self._writer.add_scalar(name, value, valid.step(step))
        self._writer.flush()

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        lines = [columns, ["---"] * len(columns), *valid.cells(rows)]
        text = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        self._writer.add_text("val/generations", text, valid.step(step))

    def close(self) -> None:
        self._writer.close()


def _cell(value: str | float | None) -> str:
    """A cell of a Markdown table, without line breaks and bars, which would end the row or the cell."""
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", "<br>")
