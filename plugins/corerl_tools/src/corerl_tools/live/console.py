"""Tracker ``console`` of corerl-tools: a live view on a terminal, a line a step elsewhere."""

from collections.abc import Mapping

from corerl.contracts.trackers import TrackedRun
from corerl_check.console import CURVES, ConsoleTracker
from corerl_tools.live.clock import Clock
from corerl_tools.live.view import LiveView


class LiveConsole(ConsoleTracker):
    """Step, parts of the current step, curves, tokens per second and time left."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self.clock = Clock(run.total_steps)
        self.live = LiveView(self.console, self.clock, CURVES) if self.console.is_terminal else None
        if self.live is not None:
            self.live.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.clock.tick(step)
        super().log(metrics, step)

    def show(self, metrics: Mapping[str, float], step: int) -> None:
        if self.live is None:
            super().show(metrics, step)
        else:
            self.live.update(metrics)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
