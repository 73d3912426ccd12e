"""``checkpoints/global_step_N/``, the pointers ``checkpoints/latest`` and ``checkpoints/best``.

A save has two parts. The workers copy their state while training waits; a thread of each writes its copy while training
goes on. A thread of the controller waits for them, adds the manifest, renames the folder and moves the pointers.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from corerl.checkpoint import manifest, random_state
from corerl.errors import DeadlineError, SaveError
from corerl.files import atomic_path, remove
from corerl.trainer.workers import TrainedWorker

PREFIX = "global_step_"
WRITTEN = ".written"
POLL = 0.005


@dataclass(frozen=True)
class Best:
    """By which metric of its step a checkpoint is kept."""

    metric: str
    mode: Literal["max", "min"] = "max"


@dataclass(frozen=True)
class _Copied:
    """A checkpoint whose files are being written.

    Attributes:
        ranks: name of a role -> how many write.
        rename: on leaving it ``temporary`` becomes ``path``, or is removed after an error.
    """

    path: Path
    temporary: Path
    ranks: Mapping[str, int]
    rename: ExitStack


class CheckpointStore:
    """The checkpoints of one run, at most one of which is being written.

    Each holds ``actor/`` (weights, optimizer, schedule, random states), ``critic/`` where there is one, ``model/``
    (what a model folder has beside weights), ``huggingface/`` (the policy as a model folder) where that is wanted,
    ``random-0.pt`` (the controller's random states), ``state.json`` and ``manifest.json``.

    Args:
        max_to_keep: of those older than the newest, so many less one are kept; None: all.
        best: the best one is kept besides.
        model_files: name -> content, for ``model/``.
        timeout: seconds that writing may take.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_to_keep: int | None = None,
        best: Best | None = None,
        model_files: Mapping[str, bytes] | None = None,
        timeout: float = 3600.0,
    ) -> None:
        self.folder, self.timeout = folder, timeout
        self._max_to_keep, self._best, self._model_files = max_to_keep, best, model_files or {}
        self._copied: _Copied | None = None
        self._thread: threading.Thread | None = None
        self._path: Path | None = None
        self._error: Exception | None = None

    def copy(self, step: int, roles: Mapping[str, TrainedWorker], export: Callable[[Path], None] | None = None) -> None:
        """Copy the state of the workers, who begin to write it; :meth:`write` is the next call.

        Args:
            roles: name of a folder -> who writes into it.
            export: writes ``huggingface/``.

        Raises:
            SaveError: a file could not be written; what was there before is as it was.
        """
        self._copied = None
        path = self.folder / f"{PREFIX}{step}"
        try:
            with ExitStack() as stack:
                temporary = stack.enter_context(atomic_path(path, folder=True))
                random_state.save(temporary)
                ranks: dict[str, int] = {}
                for name, worker in roles.items():
                    written = temporary / WRITTEN / name
                    written.mkdir(parents=True)
                    (temporary / name).mkdir()
                    ranks[name] = worker.save(temporary / name, written)
                if export is not None:
                    (temporary / "huggingface").mkdir()
                    export(temporary / "huggingface")
                self._copied = _Copied(path, temporary, ranks, stack.pop_all())
        except OSError as error:
            raise SaveError(f"{path} could not be written: {error}") from error

    def write(self, state: Mapping[str, Any]) -> None:
        """Complete the checkpoint in a thread: see :meth:`settle`. Nothing is done after a :meth:`copy` that failed.

        Args:
            state: plain values for ``state.json``.
        """
        if self._copied is None:
            return
        copied, self._copied, self._error = self._copied, None, None
        self._path = copied.path
        self._thread = threading.Thread(target=self._run, args=(copied, state), name="corerl-save", daemon=True)
        self._thread.start()

    def settle(self, *, wait: bool) -> Path | None:
        """The checkpoint that was begun, once, when it is complete; None when there is none or it is being written.

        Raises:
            SaveError: it could not be written.
            DeadlineError: writing took longer than ``timeout``.
        """
        if self._thread is None or (not wait and self._thread.is_alive()):
            return None
        self._thread.join(self.timeout)
        if self._thread.is_alive():
            raise self._late()
        self._thread, path = None, self._path
        if self._error is not None:
            raise self._error
        return path

    def _run(self, copied: _Copied, state: Mapping[str, Any]) -> None:
        step = step_of(copied.path)
        try:
            with copied.rename:
                self._await_ranks(copied)
                self._complete(copied.temporary, {"step": step, **state})
            self._point(copied.path)
            self._delete_old(step)
        except (SaveError, DeadlineError) as error:
            self._error = error
        except Exception as error:
            self._error = SaveError(f"{copied.path} could not be written: {error}")

    def _await_ranks(self, copied: _Copied) -> None:
        """Until every rank of every role has left its file, which says what went wrong."""
        deadline = time.monotonic() + self.timeout
        for name, count in copied.ranks.items():
            written = copied.temporary / WRITTEN / name
            while len(done := [each for each in written.iterdir() if each.suffix != ".tmp"]) < count:
                if time.monotonic() > deadline:
                    raise self._late()
                time.sleep(POLL)
            for error in filter(None, (each.read_text() for each in done)):
                raise SaveError(f"{copied.path / name} could not be written: {error}")
        remove(copied.temporary / WRITTEN)

    def _complete(self, temporary: Path, state: Mapping[str, Any]) -> None:
        (temporary / "model").mkdir()
        for name, content in self._model_files.items():
            (temporary / "model" / name).write_bytes(content)
        (temporary / "state.json").write_text(json.dumps(state))
        manifest.write(temporary)

    def _late(self) -> DeadlineError:
        return DeadlineError(
            f"writing the checkpoint {self._path} took longer than trainer.save_timeout = {self.timeout:g} s: "
            "look at the disk, and at the workers' logs"
        )

    def _point(self, path: Path) -> None:
        pointers = {"latest": path}
        if (best := self._best_path()) is not None:
            pointers["best"] = best
        for name, target in pointers.items():
            with atomic_path(self.folder / name) as temporary:
                temporary.write_text(target.name)

    def _best_path(self) -> Path | None:
        if self._best is None:
            return None
        scores = {path: json.loads((path / "state.json").read_text()).get("score") for path in paths(self.folder)}
        known = {path: score for path, score in scores.items() if score is not None}
        choose = max if self._best.mode == "max" else min
        return choose(known, key=lambda path: known[path]) if known else None

    def _delete_old(self, step: int) -> None:
        """Those of steps beyond ``step`` belong to a run that went on from here before: they are left alone."""
        best = self._best_path()
        if self._max_to_keep is not None:
            for old in [each for each in paths(self.folder) if step_of(each) <= step][: -self._max_to_keep]:
                if old != best:
                    old.rename(old.with_name(f".{old.name}.tmp"))
        for old in self.folder.glob(f".{PREFIX}*.tmp"):  # also those of a save or a deletion that was cut off
            remove(old)


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest step first."""
    return sorted(folder.glob(f"{PREFIX}[0-9]*"), key=step_of)


def step_of(path: Path) -> int:
    """The step that a checkpoint's name says."""
    return int(path.name.removeprefix(PREFIX))
