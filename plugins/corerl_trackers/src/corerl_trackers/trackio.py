"""Tracker ``trackio``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corerl.registry.trackers import ResumedRun
from corerl_trackers.options import TrackioOptions


class TrackioTracker:
    """A run of Trackio, which knows runs by their names: this one's is the experiment's with the run folder's."""

    def __init__(
        self,
        *,
        project_name: str,
        experiment_name: str,
        run_dir: Path,
        config: Mapping[str, Any],
        total_steps: int,
        resume: ResumedRun | None,
        options: TrackioOptions,
    ) -> None:
        import trackio

        self._trackio = trackio
        self.run_id = resume.run_id if resume and resume.run_id else f"{experiment_name}-{run_dir.name}"
        self._run = trackio.init(
            project=project_name,
            name=self.run_id,
            config=dict(config),
            space_id=options.space_id,
            resume="allow",
            embed=False,
            auto_log_cpu=False,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = self._trackio.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({"val/generations": table}, step=step)

    def close(self) -> None:
        self._run.finish()
