"""The checkpoint that a run resumes."""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from corerl.checkpoint import manifest
from corerl.checkpoint.branch import score_of, steps_of
from corerl.checkpoint.store import PREFIX, is_checkpoint, paths, step_of
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.files import is_deeper, open_regular, read_text, reading
from corerl.terminal.notices import part, say

KEY = "trainer.resume_mode"

STATE: Mapping[str, Any] = {
    "step": int,
    "sampler": dict,
    "kl_coef": int | float | None,
    "trackers": dict,
    "config": dict,
    "versions": dict,
    "digests": dict,
    "scores": dict | None,
}
"""values in ``state.json``, with their types"""

EARLIER: Mapping[str, Any] = {"digests": {}, "scores": None}
"""those that checkpoints of earlier versions lack"""

RECORD = "run.json"
"""of a run's folder: its name, and its start in UTC"""

NAME, NUMBERED = "%Y%m%d-%H%M%S", re.compile(r"([0-9]{8}-[0-9]{6})(?:-([2-9]|[1-9][0-9]{1,8}))?(.*)", re.DOTALL)
"""of the folder of a run: its start, by local time; with the number of a run that began in the same second"""

DEEPEST = 64
"""levels of lists and objects in ``state.json``"""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to resume from.

    Attributes:
        trackers: run ids of trackers.
        digests: of rows, files and tokenizer (:mod:`corerl.checkpoint.identity`).
        scores: of its :class:`corerl.checkpoint.branch.Branch`.
        has_groups: its finished groups are to be trained.
    """

    path: Path
    step: int
    sampler: Mapping[str, Any]
    kl_coef: float | None
    trackers: Mapping[str, Any]
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    digests: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[int, float | None] = field(default_factory=dict)
    has_groups: bool = True

    @property
    def run_folder(self) -> Path:
        return self.path.parent.parent

    def without(self, names: Iterable[str]) -> "Checkpoint":
        """The same without a part of its state: kl_coef, trackers, scores, has_groups."""
        none = dict.fromkeys(self.scores)
        empty: dict[str, Any] = {"kl_coef": None, "trackers": {}, "scores": none, "has_groups": False}
        return replace(self, **{name: empty[name] for name in names})

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """
        Raises:
            RequestError: ``state.json`` is damaged, or its values have other types.
        """
        file = path / "state.json"
        with reading(file):
            state = {**EARLIER, **json.loads(read_text(file))}
            for name, kind in STATE.items():
                if not isinstance(state[name], kind) or isinstance(state[name], bool):
                    raise TypeError(f"{name} is {state[name]!r:.100}")
            if is_deeper(state, DEEPEST):
                raise ValueError(f"it has more than {DEEPEST} levels")
            if not 0 <= state["step"] < 10**18 or not math.isfinite(state["kl_coef"] or 0):
                raise ValueError(f"step is {state['step']!r:.100}, kl_coef is {state['kl_coef']!r:.100}")
            scores = state["scores"]
            if scores is None:  # as far as is known, there is no other branch
                earlier = {step_of(each): each for each in paths(path.parent)}
                scores = {step: score_of(each) for step, each in earlier.items() if step <= state["step"]}
            if not all(score is None or math.isfinite(score) for score in scores.values()):
                raise ValueError("a score is not finite")
            state["scores"] = {int(step): score for step, score in scores.items()}
            return cls(path, **{name: state[name] for name in STATE})


@part("looking for a checkpoint")
def find_checkpoint(config: TrainConfig, total_steps: int, fetched: Path | None = None) -> Checkpoint | None:
    """The checkpoint that ``trainer.resume_mode`` selects, or ``fetched`` in its place; None for a new run.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or another process trains in its run.
    """
    mode = config.trainer.resume_mode if fetched is None else str(fetched)
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


@contextlib.contextmanager
def taken(run_folder: Path) -> Iterator[None]:
    """Lock a run for this process, until the block or the process ends.

    Raises:
        ConfigError: another process has the lock, or ``.lock`` is no regular file or not writable.
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
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ConfigError(KEY, f"{run_folder} is not writable ({error.strerror}); disable: a new run") from error
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


def started(name: str, record: str) -> tuple[float, int, bool]:
    """The start of a run, larger for the later of two; copies of a run's folder have the start of their original.

    Args:
        name: of the run's folder.
        record: content of RECORD; if empty, the name begins with the local time of the start, and perhaps a number.

    Returns:
        (seconds since 1970, number, whether the folder has its first name: it is no copy)
    """
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        known = json.loads(record)
        return datetime.fromisoformat(known["started"]).timestamp(), 0, known["name"] == name
    with suppress(ValueError, OverflowError, AttributeError):
        time, number, rest = NUMBERED.fullmatch(name).groups()  # type: ignore[union-attr]
        return datetime.strptime(time, NAME).timestamp(), int(number or 1), not rest
    return 0.0, 0, False


def read_record(run: Path) -> str:
    """The content of RECORD; '' if there is none."""
    try:
        return read_text(run / RECORD)
    except (OSError, UnicodeDecodeError):
        return ""


def _newest_run(config: TrainConfig) -> Path | None:
    base = Path(config.trainer.output_dir).expanduser() / config.tracking.experiment_name
    runs = [path for path in base.glob("[!.]*") if (path / "config.yaml").is_file()]
    order = {path: started(path.name, read_record(path)) for path in sorted(runs)}
    newest = max(order, key=lambda path: (order[path], path.name), default=None)
    for path, (*start, is_original) in order.items():
        if newest not in (None, path) and start == [*order[newest][:2]] and start[0] and not is_original:
            say(f"{path} is a copy of {newest} and does not continue: trainer.resume_mode={path} continues it")
    if newest is not None and _is_taken(newest):
        say(f"{newest} is still running in another process: this command starts a new run")
        return None
    return newest


def newest_whole(run_folder: Path) -> Checkpoint | None:
    """The newest undamaged checkpoint, from the one that ``latest`` names backwards, those of its branch first."""
    folder = run_folder / "checkpoints"
    present = [path for path in paths(folder) if (path / "state.json").is_file()]
    latest = _latest_step(folder / "latest") if present else None
    if latest is not None:
        branch = steps_of(folder / f"{PREFIX}{latest}")
        past = [path for path in present if step_of(path) <= latest]
        present = sorted(past, key=lambda path: (step_of(path) in branch, step_of(path)))
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
