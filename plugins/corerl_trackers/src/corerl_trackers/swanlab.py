"""Tracker ``swanlab``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corerl.registry.trackers import ResumedRun
from corerl_trackers.options import SwanlabOptions


class SwanlabTracker:
    """An experiment of SwanLab, which has one at a time in a process. Standard output is left alone."""

    def __init__(
        self,
        *,
        project_name: str,
        experiment_name: str,
        run_dir: Path,
        config: Mapping[str, Any],
        total_steps: int,
        resume: ResumedRun | None,
        options: SwanlabOptions,
    ) -> None:
        import swanlab

        self._swanlab = swanlab
        self._run = swanlab.init(
            project=project_name,
            name=experiment_name,
            log_dir=str(run_dir / "swanlab"),
            config=dict(config),
            mode=options.mode,
            workspace=options.workspace,
            tags=list(options.tags) or None,
            id=resume.run_id if resume and resume.run_id else None,
            resume="allow" if resume else None,
            settings=swanlab.Settings(terminal={"proxy_type": "none"}),
        )
        self.run_id: str = self._run.id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = self._swanlab.echarts.Table()
        table.add(list(columns), [["" if cell is None else cell for cell in row] for row in rows])
        self._run.log({"val/generations": table}, step=step)

    def close(self) -> None:
        self._run.finish()
