"""Trackers: where a run's metrics go."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Receives metrics; called from the controller only."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None:
        """Flush; called once, also after a failure."""
        ...


class TrackerFactory(Protocol):
    """Opens a tracker. ``config`` is the whole configuration as plain values, ``total_steps`` the run's length."""

    def __call__(
        self, *, project_name: str, experiment_name: str, run_dir: Path, config: Mapping[str, Any], total_steps: int
    ) -> Tracker: ...
