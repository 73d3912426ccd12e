"""Runs, for life-cycle hooks."""

from pathlib import Path
from typing import Protocol

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
