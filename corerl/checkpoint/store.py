"""``checkpoints/global_step_N/``, the pointers ``checkpoints/latest`` and ``checkpoints/best``.

A save has two parts. The workers copy their state while training waits; a thread of each writes its copy while training
goes on. A thread of the controller waits for them, adds the manifest, renames the folder and moves the pointers.
"""

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corerl.checkpoint import manifest, random_state
from corerl.checkpoint.branch import Branch
from corerl.checkpoint.writing import writing
from corerl.contracts.workers import SavingWorkers
from corerl.errors import CoreRLError, DeadlineError, SaveError
from corerl.files import atomic_path, read_text, remove, room

PREFIX = "global_step_"
NAME = re.compile(rf"{PREFIX}[0-9]{{1,18}}")
TEMPORARY = re.compile(rf"\.({NAME.pattern})\.[0-9]+\.tmp")
WRITTEN = ".written"
POLL = 0.005


@dataclass
class _Save:
    """A checkpoint whose files are being written, completed by a thread.

    Attributes:
        ranks: name of a role -> how many write.
        rename: on leaving it ``temporary`` becomes ``path``, or is removed after an error.
        deadline: by the monotonic clock.
        error: what the thread ended with.
        given_up: nobody waits for it any more, and it shall not become a checkpoint.
    """

    path: Path
    temporary: Path
    ranks: Mapping[str, int]
    rename: ExitStack
    deadline: float
    thread: threading.Thread | None = None
    error: CoreRLError | None = None
    given_up: threading.Event = field(default_factory=threading.Event)

    @property
    def all_ranks(self) -> list[tuple[str, int]]:
        """(role, rank) of each."""
        return [(name, rank) for name, count in self.ranks.items() for rank in range(count)]


class CheckpointStore:
    """The checkpoints of one run, at most one of which is being written.

    Each holds ``actor/`` (weights, optimizer, schedule, random states), ``critic/`` where there is one, ``model/``
    (what a model folder has beside weights), ``huggingface/`` (the policy as a model folder) where that is wanted,
    ``random-0.pt`` (the controller's random states), ``groups.parquet`` (finished groups that wait to be trained),
    ``state.json`` and ``manifest.json``.

    Args:
        max_to_keep: of those older than the newest, so many less one are kept; None: all.
        branch: of the checkpoint that the run continues from; its best one is kept besides.
        model_files: name -> content, for ``model/``.
        timeout: seconds that writing may take.

    Attributes:
        newest: the last that was completed here.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_to_keep: int | None = None,
        branch: Branch | None = None,
        model_files: Mapping[str, bytes] | None = None,
        timeout: float = 3600.0,
    ) -> None:
        self.folder, self.timeout = folder, timeout
        self._max_to_keep, self._branch, self._model_files = max_to_keep, branch or Branch(), model_files or {}
        self.newest: Path | None = None
        self._copied: _Save | None = None
        self._writing: _Save | None = None
        self._attempts = itertools.count(1)

    def copy(self, step: int, roles: Mapping[str, SavingWorkers], export: Callable[[Path], None] | None = None) -> None:
        """Copy the state of the workers, who begin to write it; :meth:`write` or :meth:`drop` is the next call.

        Args:
            roles: name of a folder -> who writes into it.
            export: writes ``huggingface/``.

        Raises:
            SaveError: a file could not be written; what was there before is as it was.
        """
        self._copied = None
        path, mark = self.folder / f"{PREFIX}{step}", f".{next(self._attempts)}"
        with self._naming_kept(), writing(path), ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(path, folder=True, mark=mark))
            with writing(path):  # the free bytes are those before the removal
                ranks: dict[str, int] = {}
                for name, worker in roles.items():
                    written = temporary / WRITTEN / name
                    written.mkdir(parents=True)
                    (temporary / name).mkdir()
                    ranks[name] = worker.save(temporary / name, written)
                if export is not None:
                    (temporary / "huggingface").mkdir()
                    export(temporary / "huggingface")
            self._copied = _Save(path, temporary, ranks, stack.pop_all(), time.monotonic() + self.timeout)

    def write(
        self,
        state: Mapping[str, Any],
        random_states: dict[str, Any],
        more: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        """Complete the checkpoint in a thread: see :meth:`settle`. Nothing is done after a :meth:`copy` that failed.

        Args:
            state: plain values for ``state.json``.
            random_states: the controller's.
            more: writes further files into the checkpoint's folder, in the thread.
        """
        if self._copied is None:
            return
        save, self._copied = self._copied, None
        save.deadline = time.monotonic() + self.timeout
        arguments = save, state, random_states, more
        save.thread = threading.Thread(target=self._run, args=arguments, name="corerl-save", daemon=True)
        save.thread.start()
        self._writing = save

    def settle(self, *, wait: bool) -> Path | None:
        """The checkpoint that was begun, once, when it is complete; None when there is none or it is being written.

        Raises:
            SaveError: it could not be written.
            DeadlineError: writing took longer than ``timeout``; it is given up.
        """
        save = self._writing
        if save is None or save.thread is None:
            return None
        left = save.deadline - time.monotonic()
        save.thread.join(max(0.0, left) if wait else 0.0)
        is_late = save.thread.is_alive()
        if is_late and left > 0 and not wait:
            return None
        error = self._late(save) if is_late else save.error
        save.given_up.set()
        self._writing = None
        if error is not None:
            with self._naming_kept():
                raise error
        return save.path

    def drop(self, *, wait: bool) -> None:
        """Remove a :meth:`copy` that :meth:`write` does not complete, since its step failed.

        Args:
            wait: until the workers have written their shares; False: they have ended.
        """
        save, self._copied = self._copied, None
        if save is not None:
            with suppress(CoreRLError), save.rename:
                if wait:
                    self._await_ranks(save)
                raise SaveError(f"{save.path}: its step failed")

    def give_up(self) -> None:
        """Wait no more for what is being written: who writes it has ended."""
        if self._writing is not None:
            self._writing.given_up.set()

    def _run(
        self, save: _Save, state: Mapping[str, Any], random_states: dict[str, Any], more: Callable[[Path], None]
    ) -> None:
        step = step_of(save.path)
        state = self._branch.add(step, state)
        try:
            with writing(save.path), save.rename, writing(save.path):
                self._await_ranks(save)
                random_state.write(random_states, save.temporary)
                more(save.temporary)
                self._complete(save.temporary, {"step": step, **state})
                if save.given_up.is_set():
                    raise SaveError(f"{save.path} was abandoned")
            self._point(save.path)
            self._delete_old(step)
        except CoreRLError as error:
            save.error = error
        except OSError as error:
            save.error = SaveError(f"{save.path} is complete, but not what follows it: {error}; {room(self.folder)}")

    def _await_ranks(self, save: _Save) -> None:
        """Until every rank of every role has left its empty file, or one has left its error."""
        lacking = save.all_ranks
        while lacking := self._lacking(save, lacking):
            if save.given_up.wait(POLL):
                raise SaveError(f"{save.path} was abandoned: not every rank of '{lacking[0][0]}' has written its share")
            if time.monotonic() > save.deadline:
                raise self._late(save)
        remove(save.temporary / WRITTEN)

    def _lacking(self, save: _Save, ranks: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Those of the ranks, (role, rank), that still write.

        Raises:
            SaveError: a rank has an error, or cannot write even its report.
        """
        lacking = []
        for name in dict.fromkeys(name for name, _ in ranks):
            written, error = save.temporary / WRITTEN / name, ""
            own = [rank for role, rank in ranks if role == name]
            try:
                present = {each.name for each in written.iterdir()}
                error = next(filter(None, (read_text(written / str(each)) for each in own if str(each) in present)), "")
            except FileNotFoundError:
                error = "nor could the error of a rank"
            if error:
                raise SaveError(f"{save.path / name} could not be written: {error}; {room(self.folder)}")
            lacking += [(name, rank) for rank in own if str(rank) not in present]
        return lacking

    def _complete(self, temporary: Path, state: Mapping[str, Any]) -> None:
        (temporary / "model").mkdir()
        for name, content in self._model_files.items():
            (temporary / "model" / name).write_bytes(content)
        (temporary / "state.json").write_text(json.dumps(state))
        manifest.write(temporary)

    def _late(self, save: _Save) -> DeadlineError:
        lacking = ""
        with suppress(OSError, SaveError):
            ranks = [f"rank {rank} of '{name}'" for name, rank in self._lacking(save, save.all_ranks)]
            lacking = f" (without the share of {', '.join(ranks)})" if ranks else ""
        return DeadlineError(
            f"writing the checkpoint {save.path} took longer than trainer.save_timeout = {self.timeout:g} s{lacking}: "
            "look at the disk and, under runtime 'ray', at the workers' logs (/tmp/ray/session_latest/logs)"
        )

    @contextmanager
    def _naming_kept(self) -> Iterator[None]:
        """Errors within name the checkpoint that a run continues from, and no temporary folder."""
        try:
            yield
        except (SaveError, DeadlineError) as error:
            newest = self.folder / "latest"
            kept = f"{newest.read_text()} is kept" if newest.is_file() else "no checkpoint is complete"
            error.args = (TEMPORARY.sub(r"\1", f"{error}; {kept}"),)
            raise

    def _point(self, path: Path) -> None:
        for name, target in (("latest", path), ("best", self._branch.best(self._present()))):
            if target is None:
                remove(self.folder / name)
                continue
            with atomic_path(self.folder / name) as temporary:
                temporary.write_text(target.name)
        self.newest = path

    def _present(self) -> dict[int, Path]:
        return {step_of(path): path for path in paths(self.folder)}

    def _delete_old(self, step: int) -> None:
        """Those of another branch first, except steps beyond ``step``, which are left alone."""
        present = self._present()
        self._branch.scores = {each: score for each, score in self._branch.scores.items() if each in present}
        best = self._branch.best(present)
        if self._max_to_keep is not None:
            past = sorted(filter(step.__ge__, present), key=lambda each: (each in self._branch.scores, each))
            for old in [present[each] for each in past[: -self._max_to_keep]]:
                if old != best:
                    old.rename(old.with_name(f".{old.name}.tmp"))
        begun = None if self._copied is None else self._copied.temporary
        for old in self.folder.glob(f".{PREFIX}*.tmp"):  # also those of a save or a deletion that was cut off
            if old != begun:
                remove(old)


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest step first."""
    return sorted(filter(is_checkpoint, folder.glob(f"{PREFIX}*")), key=step_of)


def is_checkpoint(path: Path) -> bool:
    """Whether a name is a checkpoint's: ``global_step_3.bak`` is somebody else's copy."""
    return NAME.fullmatch(path.name) is not None


def step_of(path: Path) -> int:
    """The step that a checkpoint's name says."""
    return int(path.name.removeprefix(PREFIX))
