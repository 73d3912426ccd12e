"""Trackers ``wandb`` and ``vemlp_wandb``, a fork on Volcano Engine: one interface, two modules."""

import os
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from corerl.contracts.trackers import TrackedRun
from corerl_trackers import valid
from corerl_trackers.options import VemlpWandbOptions, WandbOptions
from corerl_trackers.valid import Names


def foreign(name: str) -> str:
    """A name that is none of W&B's own values.

    >>> foreign("_step")
    'metric_step'
    """
    return re.sub("^_", "metric_", name)


class WandbTracker:
    """A run of W&B.

    Args:
        wandb: the module.
        run: a resumed run keeps its id; W&B keeps the first values of each step.
        settings: further arguments of ``wandb.init``.
    """

    def __init__(self, wandb: ModuleType, run: TrackedRun, **settings: Any) -> None:
        self._wandb, self._names = wandb, Names(form=foreign)
        self._run = wandb.init(
            project=run.project_name,
            name=run.experiment_name,
            dir=str(run.folder),
            config=dict(run.config),
            id=run.run_id or None,
            resume="allow",
            **settings,
        )
        self.run_id: str = self._run.id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(self._names.numbers(metrics), step=valid.step(step))

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = self._wandb.Table(columns=list(columns), data=valid.cells(rows))
        self._run.log({"val/generations": table}, step=valid.step(step))

    def close(self) -> None:
        self._run.finish()


def open_wandb(run: TrackedRun, options: WandbOptions) -> WandbTracker:
    """Open a run of W&B that is independent of other uses of W&B in this process; standard output is not captured."""
    import wandb

    return WandbTracker(
        wandb,
        run,
        mode=options.mode,
        entity=options.entity,
        group=options.group,
        tags=options.tags or None,
        reinit="create_new",
        settings=wandb.Settings(console="off", silent=True),
    )


def open_vemlp_wandb(run: TrackedRun, options: VemlpWandbOptions) -> WandbTracker:
    """Open a run of the fork; VOLC_ACCESS_KEY_ID, VOLC_SECRET_ACCESS_KEY and MLP_TRACKING_REGION hold the account."""
    import volcengine_ml_platform

    volcengine_ml_platform.init(
        ak=os.environ["VOLC_ACCESS_KEY_ID"],
        sk=os.environ["VOLC_SECRET_ACCESS_KEY"],
        region=os.environ["MLP_TRACKING_REGION"],
    )
    from volcengine_ml_platform import wandb

    return WandbTracker(wandb, run)
