"""The checkpoint that a run resumes, and the changes that are allowed."""

import contextlib
import errno
import fcntl
import fnmatch
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from corerl.checkpoint import manifest
from corerl.checkpoint.store import is_checkpoint, paths, step_of
from corerl.config.aliases import canonical
from corerl.contracts.config import TrainConfig
from corerl.contracts.training_strategies import ARCHITECTURE
from corerl.errors import ConfigError
from corerl.files import is_deeper, open_regular, read_text, reading
from corerl.terminal.notices import say

KEY = "trainer.resume_mode"

_NOT_THERE = "not there"

FREE = (
    "tracking.*",
    "runtime.*",
    "trainer.total_*",
    "trainer.max_restarts",
    "trainer.val_before_train",
    "trainer.*_freq",
    "trainer.output_dir",
    "trainer.resume_*",
    "trainer.save_*",
    "trainer.async_save",
    "trainer.*keep*",
    "trainer.on_*",
    "trainer.offload_while_generating",
    "actor.device",
    "data.val_*",
    "model.enable_gradient_checkpointing",
    "rollout.options.*",
    "rollout.val_kwargs.*",
    "rollout.free_cache_engine",
    "rollout.max_restarts",
    "rollout.nnodes",
    "rollout.n_gpus_per_node",
    "rollout.tensor_model_parallel_size",
    "rollout.verify_weights_freq",
    "*.num_workers",
    "*timeout",
    "*memory_limit_gb",
    "*_per_gpu",
    "*.max_vocabulary_log_probs_gb",
)
"""keys that may change: length of a run, its files, its machines, the sizes of its calls"""

STATE: Mapping[str, Any] = {
    "step": int,
    "sampler": dict,
    "kl_coef": int | float | None,
    "trackers": dict,
    "config": dict,
    "versions": dict,
}
"""values in ``state.json``, with their types"""

DEEPEST = 64
"""levels of lists and objects in ``state.json``"""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to resume from.

    Attributes:
        trackers: run ids of trackers.
    """

    path: Path
    step: int
    sampler: Mapping[str, Any]
    kl_coef: float | None
    trackers: Mapping[str, Any]
    config: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def run_folder(self) -> Path:
        return self.path.parent.parent

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """
        Raises:
            RequestError: ``state.json`` is damaged, or its values have other types.
        """
        file = path / "state.json"
        with reading(file):
            state = json.loads(read_text(file))
            for name, kind in STATE.items():
                if not isinstance(state[name], kind) or isinstance(state[name], bool):
                    raise TypeError(f"{name} is {state[name]!r:.100}")
            if is_deeper(state, DEEPEST):
                raise ValueError(f"it has more than {DEEPEST} levels")
            if not 0 <= state["step"] < 10**18 or not math.isfinite(state["kl_coef"] or 0):
                raise ValueError(f"step is {state['step']!r:.100}, kl_coef is {state['kl_coef']!r:.100}")
            return cls(path, **{name: state[name] for name in STATE})


def find_checkpoint(config: TrainConfig, total_steps: int) -> Checkpoint | None:
    """The checkpoint that ``trainer.resume_mode`` selects; None for a new run.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or another process trains in its run.
    """
    mode = config.trainer.resume_mode
    if mode == "disable":
        return None
    if mode == "auto":
        newest = _newest_run(config)
        checkpoint = None if newest is None else newest_whole(newest)
        return checkpoint if checkpoint is not None and checkpoint.step < total_steps else None
    path = Path(mode).expanduser()
    if (path / "state.json").is_file():
        if why := manifest.damage(path):
            raise ConfigError(KEY, f"the checkpoint {mode} is damaged: {why}; name another, or the run's folder")
        checkpoint = Checkpoint.read(path)
    else:
        checkpoint = newest_whole(path)
    if checkpoint is None:
        raise ConfigError(KEY, f"{mode} is neither auto, disable, a checkpoint, nor a run with a checkpoint")
    if _is_taken(checkpoint.run_folder):
        raise ConfigError(KEY, f"another process is training in {checkpoint.run_folder}: end it first")
    return checkpoint


def check_same(
    checkpoint: Checkpoint, config: TrainConfig, versions: Mapping[str, str], aliases: Mapping[str, str]
) -> None:
    """Compare config, plugins and architecture with those of the checkpoint.

    Args:
        aliases: alias -> key; the config of a checkpoint may have aliases.

    Raises:
        ConfigError: they differ, and ``trainer.resume_with_changes`` is false; or the architecture is another.
    """
    _check_architecture(checkpoint, config.model.path)
    saved = saved_config(checkpoint, aliases)
    found = [*differences(saved, asdict(config)), *_differing(checkpoint.versions, versions)]
    if not found:
        return
    listed = "\n  ".join(found)
    if config.trainer.resume_with_changes:
        say(f"resuming {checkpoint.path} with changes:\n  {listed}")
        return
    raise ConfigError(
        KEY,
        f"{checkpoint.path} has another configuration: set trainer.resume_mode=disable for a new run, or "
        f"trainer.resume_with_changes=true to continue with these changes\n  {listed}",
    )


def saved_config(checkpoint: Checkpoint, aliases: Mapping[str, str]) -> dict[str, Any]:
    """The checkpoint's config with keys of this version; a removed key that is null is left out.

    Raises:
        ConfigError: as for :func:`corerl.config.aliases.canonical`.
    """
    values: dict[str, Any] = _without_removed(TrainConfig, canonical(TrainConfig, checkpoint.config, aliases))
    return values


def _without_removed(hint: Any, values: Any) -> Any:
    if not is_dataclass(hint) or not isinstance(values, dict):
        return values
    hints = get_type_hints(hint)
    return {
        name: _without_removed(hints.get(name), value)
        for name, value in values.items()
        if name in hints or value is not None
    }


def _check_architecture(checkpoint: Checkpoint, path: str) -> None:
    files = checkpoint.path / "model" / "config.json", Path(path).expanduser() / "config.json"
    if not all(file.is_file() for file in files):
        return
    facts = []
    for file in files:
        with reading(file):
            facts.append({name: json.loads(read_text(file)).get(name) for name in ARCHITECTURE})
    stored, named = facts
    for name in ARCHITECTURE:
        if None not in (stored[name], named[name]) and stored[name] != named[name]:
            raise ConfigError(
                "model.path",
                f"the model {path} has {name} {named[name]!r}, the checkpoint {checkpoint.path} has {stored[name]!r}",
            )


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """``key: saved -> present`` of every key that changes what is computed."""
    before, now = (dict(_flat(json.loads(json.dumps(values)))) for values in (saved, present))
    before, now = _same_spelling(before, now), _same_spelling(now, before)
    free = {key for key in before | now for pattern in FREE if fnmatch.fnmatchcase(key, pattern)}
    return [each for each in _differing(before, now) if each.partition(": ")[0] not in free]


@contextlib.contextmanager
def taken(run_folder: Path) -> Iterator[None]:
    """Lock a run for this process, until the block or the process ends.

    Raises:
        ConfigError: another process has the lock, or ``.lock`` is no regular file.
    """
    with os.fdopen(_open_lock(run_folder), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(KEY, f"another process is training in {run_folder}: end it first") from None
        except OSError:
            pass  # a file system without locks
        yield


def _open_lock(run_folder: Path) -> int:
    """The lock of a run, perhaps from others: a link could change another file."""
    try:
        return open_regular(run_folder / ".lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO):
            raise ConfigError(KEY, f"{run_folder / '.lock'} is no regular file: remove it") from error
        raise


def _is_taken(run_folder: Path) -> bool:
    try:
        with os.fdopen(open_regular(run_folder / ".lock")) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _newest_run(config: TrainConfig) -> Path | None:
    base = Path(config.trainer.output_dir).expanduser() / config.tracking.experiment_name
    runs = [path for path in base.glob("*") if (path / "config.yaml").is_file() and not path.name.startswith(".")]
    newest = max(runs, key=lambda path: [int(part) for part in path.name.split("-") if part.isdigit()], default=None)
    if newest is not None and _is_taken(newest):
        say(f"{newest} is still running in another process: this command starts a new run")
        return None
    return newest


def newest_whole(run_folder: Path) -> Checkpoint | None:
    """The newest undamaged checkpoint, from the one that ``latest`` names backwards."""
    folder = run_folder / "checkpoints"
    present = [path for path in paths(folder) if (path / "state.json").is_file()]
    latest = _latest_step(folder / "latest") if present else None
    if latest is not None:
        present = [path for path in present if step_of(path) <= latest]
    for path in reversed(present):
        why = manifest.damage(path)
        if not why:
            return Checkpoint.read(path)
        say(f"the checkpoint {path} is damaged ({why}): the previous checkpoint is used")
    return None


def _latest_step(pointer: Path) -> int | None:
    """The step in the file; None without one, as after a loss of power."""
    if not os.path.lexists(pointer):
        return None
    try:
        named = Path(read_text(pointer).strip())
        if is_checkpoint(named):
            return step_of(named)
        why = f"has {named.name!r}" if named.name else "is empty"
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error}"
    say(f"{pointer} names no checkpoint (it {why}): the newest complete checkpoint is used")
    return None


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _same_spelling(values: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``key.name: name`` as ``key: name`` if ``other`` does."""
    return {short if (short := key.removesuffix(".name")) in other else key: value for key, value in values.items()}


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    pairs = {key: (before.get(key, _NOT_THERE), now.get(key, _NOT_THERE)) for key in {**before, **now}}
    return [f"{key}: {old} -> {new}" for key, (old, new) in pairs.items() if old != new]
