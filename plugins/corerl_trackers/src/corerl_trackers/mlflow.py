"""Tracker ``mlflow``, with a client of its own: no active run, no global state of the process."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.trackers import TrackedRun
from corerl_trackers import valid
from corerl_trackers.options import MlflowOptions
from corerl_trackers.valid import Names

MOST = 1000
"""metrics of a call of MLflow's servers"""
REFUSED = "INVALID_PARAMETER_VALUE"
"""MLflow's code for a name or a number that it does not take"""


class MlflowTracker:
    """A run in the experiment ``project_name``; config and samples are artifacts.

    MLflow allows no ``@`` in a metric's name: ``mean@8`` becomes ``mean_at_8``. A metric that MLflow refuses costs no
    other one.
    """

    def __init__(self, run: TrackedRun, options: MlflowOptions) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        self._metric, self._exception = Metric, MlflowException
        self._names = Names(r"[^\w\-. /:]", at="_at_")
        uri = (
            options.tracking_uri
            or os.environ.get("MLFLOW_TRACKING_URI")
            or f"sqlite:///{run.folder.resolve()}/mlflow.db"
        )
        self._client = MlflowClient(tracking_uri=uri)
        self.run_id = run.run_id
        if self.run_id:
            self._client.update_run(self.run_id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(run.project_name)
        local = f"{run.folder.resolve()}/mlflow" if uri.startswith("sqlite:") else None
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(run.project_name, local)
        )
        self.run_id = self._client.create_run(experiment_id, run_name=run.experiment_name).info.run_id
        self._client.log_dict(self.run_id, dict(run.config), "config.yaml")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """
        Raises:
            MlflowException: MLflow cannot be reached, or has refused a metric; the others are sent.
        """
        now, numbers = int(time.time() * 1000), self._names.numbers(metrics)
        named = [self._metric(name, value, now, valid.step(step)) for name, value in numbers.items()]
        refused = [error for start in range(0, len(named), MOST) for error in self._send(named[start : start + MOST])]
        if refused:
            raise refused[0]

    def _send(self, metrics: Sequence[Any]) -> list[Exception]:
        """Send metrics together; if MLflow refuses them, each alone. Returns the errors of those refused alone."""
        try:
            self._client.log_batch(self.run_id, metrics=metrics)
        except self._exception as error:
            if error.error_code != REFUSED:
                raise
            return [error] if len(metrics) == 1 else [each for metric in metrics for each in self._send([metric])]
        return []

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = json.dumps({"columns": list(columns), "data": valid.cells(rows)}, ensure_ascii=False)
        self._client.log_text(self.run_id, table, f"val_generations/step_{step:06d}.json")

    def close(self) -> None:
        self._client.set_terminated(self.run_id)
