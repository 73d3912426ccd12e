"""Tracker ``clearml``."""

import math
import os
from collections.abc import Mapping, Sequence

from corerl.contracts.trackers import TrackedRun
from corerl_trackers import valid
from corerl_trackers.options import ClearmlOptions
from corerl_trackers.valid import Names


def titled(name: str) -> str:
    """A name with a plot's title before its series.

    >>> titled("critic/score/mean"), titled("loss")
    ('critic/score/mean', 'loss/loss')
    """
    return name if "/" in name else f"{name}/{name}"


class ClearmlTracker:
    """A task of ClearML, which allows one per process. Automatic connections are off: only metrics and config are sent.

    ``critic/score/mean`` is the series ``score/mean`` of the plot ``critic``. Values that are not finite are left out:
    ClearML would show them as 0.
    """

    def __init__(self, run: TrackedRun, options: ClearmlOptions) -> None:
        if options.offline:
            os.environ.setdefault("CLEARML_CACHE_DIR", str(run.folder / "clearml"))
        from clearml import Task

        if options.offline:
            Task.set_offline(True)
        self._task = Task.init(
            project_name=run.project_name,
            task_name=run.experiment_name,
            tags=list(options.tags) or None,
            reuse_last_task_id=run.run_id or False,
            continue_last_task=0 if run.run_id else False,
            auto_connect_arg_parser=False,
            auto_connect_frameworks=False,
            auto_connect_streams=False,
        )
        self.run_id: str = "" if options.offline else self._task.id
        self._logger, self._names = self._task.get_logger(), Names(form=titled)
        if not run.run_id:
            self._task.connect_configuration(dict(run.config), name="config")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in self._names.numbers(metrics).items():
            title, _, series = name.partition("/")
            if math.isfinite(value):
                self._logger.report_scalar(title, series, value, valid.step(step))

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = [list(columns), *valid.cells(rows)]
        self._logger.report_table("val", "generations", valid.step(step), table_plot=table)

    def close(self) -> None:
        self._task.close()
