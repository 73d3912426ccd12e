"""Tracker ``swanlab``."""

from collections.abc import Mapping, Sequence

from corerl.contracts.trackers import TrackedRun
from corerl_trackers import valid
from corerl_trackers.options import SwanlabOptions
from corerl_trackers.valid import Names


class SwanlabTracker:
    """An experiment of SwanLab, which allows one per process. Standard output is not captured."""

    def __init__(self, run: TrackedRun, options: SwanlabOptions) -> None:
        import swanlab

        self._swanlab, self._names = swanlab, Names()
        self._run = swanlab.init(
            project=run.project_name,
            name=run.experiment_name,
            log_dir=str(run.folder / "swanlab"),
            config=dict(run.config),
            mode=options.mode,
            workspace=options.workspace,
            tags=list(options.tags) or None,
            id=run.run_id or None,
            resume=None if run.resumed_from is None else "allow",
            settings=swanlab.Settings(terminal={"proxy_type": "none"}),
        )
        self.run_id: str = self._run.id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(self._names.numbers(metrics), step=valid.step(step))

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = self._swanlab.echarts.Table()
        table.add(list(columns), [["" if cell is None else cell for cell in row] for row in valid.cells(rows)])
        self._run.log({"val/generations": table}, step=valid.step(step))

    def close(self) -> None:
        self._run.finish()
