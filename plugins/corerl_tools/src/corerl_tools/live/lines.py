"""Tracker ``console`` without a terminal: a line a step."""

from collections.abc import Mapping

from corerl.contracts.trackers import TrackedRun
from corerl.terminal.consoles import error_console
from corerl.terminal.output import printable
from corerl_tools.live.clock import Clock

MOST_LINES = 100
"""in a pipe, a run of more steps prints only every so many"""

CURVES = (
    ("loss", "train/loss", "{:.4f}"),
    ("val loss", "val/loss", "{:.4f}"),
    ("reward", "critic/score/mean", "{:.3f}"),
    ("length", "response_length/mean", "{:.1f}"),
    ("KL", "actor/kl_loss", "{:.4f}"),
    ("KL", "actor/reward_kl_penalty", "{:.4f}"),
    ("ppo KL", "actor/ppo_kl", "{:.4f}"),
)
"""label, metric and format; a metric that a run does not have is left out"""

COLUMNS = (*CURVES, ("tokens/s", "perf/throughput", "{:.0f}"))


class LineTracker:
    """Reward, length, KL, tokens a second and time left."""

    def __init__(self, run: TrackedRun) -> None:
        self.every = max(1, run.total_steps // MOST_LINES)
        self.console = error_console()
        self.clock = Clock(run.total_steps)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.clock.tick(step)
        for name, value in metrics.items():
            if name.startswith("val-core/"):
                self.console.print(printable(f"step {step}: {name} {value:.3f}"), markup=False)
        self.show(metrics, step)

    def show(self, metrics: Mapping[str, float], step: int) -> None:
        """Print the line of a step, or of every so many."""
        line, total = summary(metrics), self.clock.total_steps
        if line and (step % self.every == 0 or step == total):
            left = f"left {self.clock.left()}" if self.clock.left() else ""
            self.console.print(f"step {step}/{total}  {line}  {left}", soft_wrap=True, markup=False)

    def close(self) -> None:
        pass


def summary(metrics: Mapping[str, float]) -> str:
    """The columns that the metrics hold, as one line."""
    return "  ".join(f"{label} {form.format(metrics[name])}" for label, name, form in COLUMNS if name in metrics)
