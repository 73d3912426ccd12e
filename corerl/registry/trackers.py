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
        run_id: what the factory is given as ``resume.run_id`` when the run goes on.
    """

    run_id: str


@dataclass(frozen=True)
class ResumedRun:
    """A run that goes on from a checkpoint.

    Attributes:
        last_step: the checkpoint's; what was logged of later steps comes again.
        run_id: the tracker's, '' where it had none.
    """

    last_step: int
    run_id: str = ""


class TrackerFactory(Protocol):
    """Opens a tracker. ``config`` is the whole configuration as plain values, ``total_steps`` the run's length.

    ``resume`` is None in a run that starts.
    """

    def __call__(
        self,
        *,
        project_name: str,
        experiment_name: str,
        run_dir: Path,
        config: Mapping[str, Any],
        total_steps: int,
        resume: ResumedRun | None,
    ) -> Tracker: ...
