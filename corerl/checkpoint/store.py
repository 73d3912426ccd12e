"""``checkpoints/global_step_N/`` and the pointer ``checkpoints/latest``."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.errors import ConfigError
from corerl.files import atomic_path, remove
from corerl.trainer.workers import CriticWorker, PolicyWorker

PREFIX = "global_step_"


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one run.

    Each holds ``actor/`` (weights, optimizer, schedule), ``critic/`` where there is one, ``huggingface/`` (the policy,
    a model folder to use elsewhere) and ``state.json`` (step, sampler, weight of the KL penalty).
    """

    folder: Path
    max_to_keep: int | None = None

    def save(
        self, step: int, actor: PolicyWorker, state: Mapping[str, Any], *, critic: CriticWorker | None = None
    ) -> Path:
        """Write a checkpoint, point ``latest`` at it, delete what is beyond ``max_to_keep``.

        Args:
            state: plain values for ``state.json``.
        """
        path = self.folder / f"{PREFIX}{step}"
        with atomic_path(path, folder=True) as temporary:
            parts: dict[str, Callable[[Path], None]] = {"actor": actor.save, "huggingface": actor.export}
            if critic is not None:
                parts["critic"] = critic.save
            for name, write in parts.items():
                (temporary / name).mkdir()
                write(temporary / name)
            (temporary / "state.json").write_text(json.dumps({"step": step, **state}))
        with atomic_path(self.folder / "latest") as temporary:
            temporary.write_text(path.name)
        if self.max_to_keep is not None:
            for old in self._paths()[: -self.max_to_keep]:
                old.rename(old.with_name(f".{old.name}.tmp"))
            for old in self.folder.glob(f".{PREFIX}*.tmp"):  # also those of a deletion that was cut off
                remove(old)
        return path

    def _paths(self) -> list[Path]:
        paths = self.folder.glob(f"{PREFIX}[0-9]*")
        return sorted(paths, key=lambda path: int(path.name.removeprefix(PREFIX)))


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to resume from."""

    path: Path
    step: int
    sampler: Mapping[str, Any]
    kl_coef: float | None = None

    @property
    def run_folder(self) -> Path:
        return self.path.parent.parent


def find_checkpoint(resume: str) -> Checkpoint | None:
    """What ``checkpoint.resume`` names: None for ``never``, the latest of a run's folder, or that very checkpoint.

    Raises:
        ConfigError: there is no complete checkpoint.
    """
    if resume == "never":
        return None
    path = Path(resume).expanduser()
    latest = path / "checkpoints" / "latest"
    if latest.is_file():
        path = latest.parent / latest.read_text().strip()
    if not (path / "state.json").is_file():
        raise ConfigError("checkpoint.resume", f"{resume} is neither a run with a checkpoint nor a checkpoint")
    state = json.loads((path / "state.json").read_text())
    return Checkpoint(path, state["step"], state["sampler"], state.get("kl_coef"))
