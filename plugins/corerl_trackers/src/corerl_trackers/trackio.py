"""Tracker ``trackio``."""

from collections.abc import Mapping, Sequence

from corerl.contracts.trackers import TrackedRun
from corerl_trackers import valid
from corerl_trackers.options import TrackioOptions
from corerl_trackers.valid import Names


class TrackioTracker:
    """A run of Trackio, which identifies runs by name: here the names of experiment and run folder."""

    def __init__(self, run: TrackedRun, options: TrackioOptions) -> None:
        import trackio

        self._trackio, self._names = trackio, Names()
        self.run_id = run.run_id or f"{run.experiment_name}-{run.folder.name}"
        self._run = trackio.init(
            project=run.project_name,
            name=self.run_id,
            config=dict(run.config),
            space_id=options.space_id,
            resume="allow",
            embed=False,
            auto_log_cpu=False,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(self._names.numbers(metrics), step=valid.step(step))

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = self._trackio.Table(columns=list(columns), data=valid.cells(rows))
        self._run.log({"val/generations": table}, step=valid.step(step))

    def close(self) -> None:
        self._run.finish()
