"""Tracker ``mlflow``, with a client of its own: no active run, no global state of the process."""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence

from corerl.contracts.trackers import TrackedRun
from corerl_trackers.options import MlflowOptions


class MlflowTracker:
    """A run in the experiment ``project_name``; config and samples are artifacts.

    MLflow allows no ``@`` in a metric's name: ``mean@8`` becomes ``mean_at_8``.
    """

    def __init__(self, run: TrackedRun, options: MlflowOptions) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
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
        now = int(time.time() * 1000)
        named = [self._metric(_name(name), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=named)

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = json.dumps({"columns": list(columns), "data": [list(row) for row in rows]}, ensure_ascii=False)
        self._client.log_text(self.run_id, table, f"val_generations/step_{step:06d}.json")

    def close(self) -> None:
        self._client.set_terminated(self.run_id)


def _name(name: str) -> str:
    """A name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /:]", "_", name.replace("@", "_at_"))
