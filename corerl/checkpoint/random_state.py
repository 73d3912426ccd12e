"""The random states of a process, for plugins, models and scorers; CoreRL itself draws from none."""

import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corerl.files import reading_file


def seed(seed: int) -> None:
    """Set the states that follow from ``trainer.seed``."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_rank(seed_of_run: int) -> None:
    """As :func:`seed`, in the process of a rank; each rank has states of its own."""
    if "RANK" in os.environ:
        seed(seed_of_run + int(os.environ["RANK"]))


def present() -> dict[str, Any]:
    """A copy of the states of this process."""
    kind, keys, *rest = np.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).copy()), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def write(states: dict[str, Any], folder: Path) -> None:
    """Write the states from :func:`present` as ``random-<rank>.pt``."""
    copied = io.BytesIO()  # torch's own writer gives no clear error of a full disk
    torch.save(states, copied)
    _file(folder).write_bytes(copied.getbuffer())


def restore(folder: Path) -> None:
    """Set the states from :func:`write`; nothing without a file of this rank.

    Raises:
        RequestError: the file is damaged.
    """
    if not _file(folder).exists():
        return
    with reading_file(_file(folder)):
        state = torch.load(_file(folder), weights_only=True)
        random.setstate(state["python"])
        kind, keys, *rest = state["numpy"]
        np.random.set_state((kind, keys.numpy(), *rest))
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


def _file(folder: Path) -> Path:
    return folder / f"random-{os.environ.get('RANK', '0')}.pt"
