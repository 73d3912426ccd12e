"""Checkpoints."""

from pathlib import Path
from typing import Any


def save(folder: Path, strategy: Any) -> None:
    raise NotImplementedError


def load(folder: Path, strategy: Any) -> None:
    raise NotImplementedError
