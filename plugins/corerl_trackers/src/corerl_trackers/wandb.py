"""Trackers ``wandb`` and ``vemlp_wandb``, its fork on Volcano Engine: one interface, two modules."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from corerl.registry.trackers import ResumedRun
from corerl_trackers.options import VemlpWandbOptions, WandbOptions


class WandbTracker:
    """A run of W&B.

    Args:
        wandb: the module.
        resume: the run goes on under its id, in which W&B keeps of each step what came first.
        settings: further arguments of ``wandb.init``.
    """

    def __init__(
        self,
        wandb: ModuleType,
        project_name: str,
        experiment_name: str,
        run_dir: Path,
        config: Mapping[str, Any],
        resume: ResumedRun | None,
        **settings: Any,
    ) -> None:
        self._wandb = wandb
        self._run = wandb.init(
            project=project_name,
            name=experiment_name,
            dir=str(run_dir),
            config=dict(config),
            id=resume.run_id if resume and resume.run_id else None,
            resume="allow",
            **settings,
        )
        self.run_id: str = self._run.id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        table = self._wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({"val/generations": table}, step=step)

    def close(self) -> None:
        self._run.finish()


def open_wandb(
    *,
    project_name: str,
    experiment_name: str,
    run_dir: Path,
    config: Mapping[str, Any],
    total_steps: int,
    resume: ResumedRun | None,
    options: WandbOptions,
) -> WandbTracker:
    """W&B itself. A run of its own, whatever else in this process uses W&B; standard output is left alone."""
    import wandb

    return WandbTracker(
        wandb,
        project_name,
        experiment_name,
        run_dir,
        config,
        resume,
        mode=options.mode,
        entity=options.entity,
        group=options.group,
        tags=options.tags or None,
        reinit="create_new",
        settings=wandb.Settings(console="off", silent=True),
    )


def open_vemlp_wandb(
    *,
    project_name: str,
    experiment_name: str,
    run_dir: Path,
    config: Mapping[str, Any],
    total_steps: int,
    resume: ResumedRun | None,
    options: VemlpWandbOptions,
) -> WandbTracker:
    """The fork; who one is, is in VOLC_ACCESS_KEY_ID, VOLC_SECRET_ACCESS_KEY and MLP_TRACKING_REGION."""
    import volcengine_ml_platform

    volcengine_ml_platform.init(
        ak=os.environ["VOLC_ACCESS_KEY_ID"],
        sk=os.environ["VOLC_SECRET_ACCESS_KEY"],
        region=os.environ["MLP_TRACKING_REGION"],
    )
    from volcengine_ml_platform import wandb

    return WandbTracker(wandb, project_name, experiment_name, run_dir, config, resume)
