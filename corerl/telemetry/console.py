"""Tracker ``console``: a live progress line on a terminal, a line a step elsewhere."""

import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from corerl.registry.trackers import ResumedRun

MOST_LINES = 100
"""in a pipe, a run of more steps prints only every so many"""

COLUMNS = (
    ("loss", "train/loss", "{:.4f}"),
    ("val loss", "val/loss", "{:.4f}"),
    ("reward", "critic/score/mean", "{:.3f}"),
    ("length", "response_length/mean", "{:.1f}"),
    ("KL", "actor/kl_loss", "{:.4f}"),
    ("KL", "actor/reward_kl_penalty", "{:.4f}"),
    ("ppo KL", "actor/ppo_kl", "{:.4f}"),
    ("tokens/s", "perf/throughput", "{:.0f}"),
)
"""label, metric and format; a metric that a run does not have is left out"""


class ConsoleTracker:
    """Reward, length, KL, tokens a second and time left."""

    def __init__(
        self,
        *,
        project_name: str,
        experiment_name: str,
        run_dir: Path,
        config: Mapping[str, Any],
        total_steps: int,
        resume: ResumedRun | None = None,
    ) -> None:
        self.total_steps = total_steps
        self.every = max(1, total_steps // MOST_LINES)
        self.console = Console(stderr=True, highlight=False)
        self.first: tuple[int, float] | None = None
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.progress.add_task("training", total=total_steps, line="")
        if self.console.is_terminal:
            self.progress.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self.first is None:
            self.first = step, time.monotonic()
        line = summary(metrics)
        for name, value in metrics.items():
            if name.startswith("val-core/"):
                self.console.print(f"step {step}: {name} {value:.3f}")
        if self.console.is_terminal:
            self.progress.update(self.task, completed=step, line=line)
        elif line and (step % self.every == 0 or step == self.total_steps):
            self.console.print(f"step {step}/{self.total_steps}  {line}  {self._time_left(step)}", soft_wrap=True)

    def close(self) -> None:
        self.progress.stop()

    def _time_left(self, step: int) -> str:
        """From the pace since the first record."""
        assert self.first is not None
        first, since = self.first
        if step == first:
            return ""
        seconds = round((time.monotonic() - since) / (step - first) * (self.total_steps - step))
        return f"left {timedelta(seconds=seconds)}"


def summary(metrics: Mapping[str, float]) -> str:
    """The columns that the metrics hold, as one line."""
    return "  ".join(f"{label} {form.format(metrics[name])}" for label, name, form in COLUMNS if name in metrics)
