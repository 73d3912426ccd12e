"""Tracker ``console``: a live view on a terminal, a line a step elsewhere."""

from collections.abc import Mapping

from corerl.contracts.trackers import TrackedRun
from corerl.telemetry.clock import Clock
from corerl.telemetry.live import LiveView
from corerl.terminal.consoles import error_console
from corerl.terminal.output import printable

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


class ConsoleTracker:
    """Reward, length, KL, tokens a second and time left."""

    def __init__(self, run: TrackedRun) -> None:
        self.every = max(1, run.total_steps // MOST_LINES)
        self.console = error_console()
        self.clock = Clock(run.total_steps)
        self.live = LiveView(self.console, self.clock, CURVES) if self.console.is_terminal else None
        if self.live is not None:
            self.live.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.clock.tick(step)
        for name, value in metrics.items():
            if name.startswith("val-core/"):
                self.console.print(printable(f"step {step}: {name} {value:.3f}"), markup=False)
        line, total = summary(metrics), self.clock.total_steps
        if self.live is not None:
            self.live.update(metrics)
        elif line and (step % self.every == 0 or step == total):
            left = f"left {self.clock.left()}" if self.clock.left() else ""
            self.console.print(f"step {step}/{total}  {line}  {left}", soft_wrap=True, markup=False)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()


def summary(metrics: Mapping[str, float]) -> str:
    """The columns that the metrics hold, as one line."""
    return "  ".join(f"{label} {form.format(metrics[name])}" for label, name, form in COLUMNS if name in metrics)
