"""Runs, for life-cycle hooks, and their restarts."""

from pathlib import Path
from typing import Any, Protocol

from corerl.contracts.config import TrainConfig


class Run(Protocol):
    """A training run."""

    @property
    def config(self) -> TrainConfig:
        """With all defaults filled in."""
        ...

    @property
    def folder(self) -> Path:
        """``<output_dir>/<experiment_name>/<time>``."""
        ...


class Restarts(Protocol):
    """What outlives the workers of a run, made once a process by the hook ``make_restarts``: its lock and its status.

    Attributes:
        count: of the times that lost workers were started again.
    """

    count: int

    def take(self, folder: Path) -> None:
        """Create the run's folder and lock it."""
        ...

    def record(self, total_steps: int) -> None:
        """Write the run's status, now and when it ends."""
        ...

    def after(self, error: BaseException, plan: Any, trainer: Any) -> Any:
        """The plan by which the run goes on after ``error``, or raise.

        Args:
            trainer: None: the workers were being started.
        """
        ...

    def wait(self, plan: Any) -> None:
        """Free what the lost workers held here, and give the machines time."""
        ...
