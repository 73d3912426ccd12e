"""Trackers: where a run's metrics go.

The core calls each tracker, its factory included, in a thread of its own, one call at a time. One that raises is told
about once and called again at the next step; one that takes longer than ``tracking.timeout`` is called no more. Neither
holds up the run, and all metrics are in ``metrics.jsonl`` whatever becomes of a tracker.
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
    """A tracker that has tables too."""

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        """Show responses of the evaluation at ``step``; each row has a cell for each column."""
        ...


@runtime_checkable
class ResumableTracker(Tracker, Protocol):
    """A tracker whose service knows runs by an id; checkpoints keep it.

    Attributes:
        run_id: what the factory is given when the run goes on.
    """

    run_id: str


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of the run.

    Attributes:
        project_name, experiment_name: ``tracking.project_name`` and ``tracking.experiment_name``.
        folder: the run's, for files of the tracker.
        config: the whole configuration as plain values.
        total_steps: the run's length.
        resumed_from: the step of the checkpoint that it goes on from; what was logged of later ones comes again. -1: of
            all steps, in a run that starts again without a checkpoint; None: in one that starts.
        run_id: the tracker's, of which the checkpoint knows; '' where there is none.
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
