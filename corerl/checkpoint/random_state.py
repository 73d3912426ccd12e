"""The random states of a process. CoreRL draws from none of them; a plugin, a model or a scorer may."""

import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corerl.files import reading_file


def seed(seed: int) -> None:
    """Let a run begin with states that follow from ``trainer.seed``."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_rank(seed_of_run: int) -> None:
    """In the process of a rank, which does not have the controller's states: let it begin with states of its own."""
    if "RANK" in os.environ:
        seed(seed_of_run + int(os.environ["RANK"]))


def present() -> dict[str, Any]:
    """A copy of those of this process; quick."""
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
    """Write what :func:`present` gave, as ``random-<rank>.pt``."""
    copied = io.BytesIO()  # torch's own way into a file tells of a full disk in riddles
    torch.save(states, copied)
    _file(folder).write_bytes(copied.getbuffer())


def restore(folder: Path) -> None:
    """Set what :func:`write` wrote; nothing where this rank was not there.

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
