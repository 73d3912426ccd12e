"""Tracker ``console``: a line a step. corerl-tools replaces it by a live view on a terminal."""

import time
from collections.abc import Mapping
from datetime import timedelta

from corerl.contracts.trackers import TrackedRun
from corerl.terminal.consoles import error_console
from corerl.terminal.output import printable

MOST_LINES = 100
"""in a pipe, a run of more steps prints only every so many"""

CURVES = (
    ("loss", "train/loss", "{:.4f}"),
    ("val loss", "val/loss", "{:.4f}"),
    ("accuracy", "train/accuracy", "{:.3f}"),
    ("val accuracy", "val/accuracy", "{:.3f}"),
    ("reward", "critic/score/mean", "{:.3f}"),
    ("length", "response_length/mean", "{:.1f}"),
    ("KL", "actor/kl_loss", "{:.4f}"),
    ("KL", "actor/reward_kl_penalty", "{:.4f}"),
    ("ppo KL", "actor/ppo_kl", "{:.4f}"),
)
"""label, metric and format; a metric that a run does not have is left out"""

COLUMNS = (*CURVES, ("tokens/s", "perf/throughput", "{:.0f}"))


class ConsoleTracker:
    """Reward, length, KL, tokens a second and time left."""

    def __init__(self, run: TrackedRun) -> None:
        self.every = max(1, run.total_steps // MOST_LINES)
        self.console = error_console()
        self._total = run.total_steps
        self._first: tuple[int, float] | None = None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            if name.startswith("val-core/"):
                self.console.print(printable(f"step {step}: {name} {value:.3f}"), markup=False)
        self._first = self._first or (step, time.monotonic())
        self.show(metrics, step)

    def show(self, metrics: Mapping[str, float], step: int) -> None:
        """Print the line of a step, or of every so many."""
        line = summary(metrics)
        if line and (step % self.every == 0 or step == self._total):
            self.console.print(f"step {step}/{self._total}  {line}  {self._left(step)}", soft_wrap=True, markup=False)

    def _left(self, step: int) -> str:
        """``left 0:12:30``; '' before two steps are done."""
        if self._first is None or step == self._first[0]:
            return ""
        pace = (time.monotonic() - self._first[1]) / (step - self._first[0])
        return f"left {timedelta(seconds=round(pace * (self._total - step)))}"

    def close(self) -> None:
        pass


def summary(metrics: Mapping[str, float]) -> str:
    """The columns that the metrics hold, as one line."""
    return "  ".join(f"{label} {form.format(metrics[name])}" for label, name, form in COLUMNS if name in metrics)
