"""Trackers: destinations of a run's metrics.

Each tracker, its factory included, is called in a thread of its own, one call at a time. A tracker that raises is
reported once and called again at the next step; a call over ``tracking.timeout`` is the last. Neither delays the run,
and ``metrics.jsonl`` has all metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


class Tracker(Protocol):
    """Receives metrics."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None:
        """Flush; called once, also after a failure."""
        ...


@runtime_checkable
class SampleTracker(Tracker, Protocol):
    """A tracker with tables."""

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        """Show responses of the evaluation at ``step``; each row has a cell for each column."""
        ...


@runtime_checkable
class ResumableTracker(Tracker, Protocol):
    """A tracker whose service has ids of runs.

    Attributes:
        run_id: stored in checkpoints, and given to the factory of a continued run.
    """

    run_id: str


@dataclass(frozen=True)
class TrackedRun:
    """The run, for a tracker.

    Attributes:
        project_name, experiment_name: ``tracking.project_name`` and ``tracking.experiment_name``.
        folder: of the run, for files of the tracker.
        config: the whole configuration as plain values.
        total_steps: of the run.
        resumed_from: step of the checkpoint that the run continues; metrics of later steps are sent again. -1: the run
            restarts without a checkpoint; None: a new run.
        run_id: of the tracker, from the checkpoint, or ''.
    """

    project_name: str
    experiment_name: str
    folder: Path
    config: Mapping[str, Any]
    total_steps: int
    resumed_from: int | None = None
    run_id: str = ""


class TrackerFactory(Protocol):
    """Opens a tracker. With options it takes ``options``."""

    def __call__(self, run: TrackedRun) -> Tracker: ...
