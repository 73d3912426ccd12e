"""Copies of complete checkpoints, in a thread."""

import atexit
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from corerl.checkpoint.store import is_checkpoint, step_of
from corerl.errors import SaveError
from corerl.files import atomic_path, remove
from corerl.terminal import Recurring
from corerl_tools.remote import places

if TYPE_CHECKING:
    from corerl.trainer.run import Run

FILE = "remote.json"
"""of a run's folder: :class:`Remote`"""

LINKS = ".remote"
"""of a run's folder: links to the files of the checkpoint that is copied, which may be deleted meanwhile"""

_RUNS: dict[Path, "Copies"] = {}


@dataclass(frozen=True)
class Remote:
    """The copies of a run, as ``remote.json`` has them.

    Attributes:
        checkpoint: name of the last one that was begun.
        state: ``copying``, ``copied``, ``failed`` (also: late), ``none``.
        error: of a failed copy.
        seconds: that it took.
        known: names of the copies that are deleted there when they are deleted here.
        url: of the remote folder that has them.
    """

    checkpoint: str = ""
    state: str = "none"
    error: str = ""
    seconds: float = 0.0
    known: tuple[str, ...] = ()
    url: str = ""


def read(folder: Path) -> Remote:
    """The copies of the run in ``folder``."""
    with suppress(OSError, ValueError, TypeError):
        values = json.loads((folder / FILE).read_text())
        return Remote(**{**values, "known": tuple(map(str, values["known"]))})
    return Remote()


def write(folder: Path, remote: Remote) -> None:
    """Write ``remote.json``; a full disk is no matter of the copies."""
    with suppress(OSError), atomic_path(folder / FILE) as temporary:
        temporary.write_text(json.dumps(asdict(remote), indent=2) + "\n")


def of_run(run: "Run") -> "Copies":
    """The copies of a run, which outlive its workers."""
    return _RUNS.setdefault(run.folder, Copies(run))


@atexit.register
def _settle_all() -> None:
    """Of runs whose workers were lost, and not started again."""
    for copies in _RUNS.values():
        copies.settle(raises=False)


def ended(run: "Run", error: BaseException | None) -> None:
    """Wait for the last copy at the end of a run.

    Raises:
        SaveError: it failed, with ``trainer.on_save_error: stop`` and without another error.
    """
    copies = _RUNS.pop(run.folder, None)
    if copies is not None:
        copies.settle(raises=error is None)


@dataclass
class _Copy:
    """One copy.

    Attributes:
        given_up: nobody waits for it any more.
    """

    name: str
    began: float = field(default_factory=time.monotonic)
    thread: Thread | None = None
    error: str = ""
    given_up: Event = field(default_factory=Event)


class Copies:
    """The copies of one run, one at a time."""

    def __init__(self, run: "Run") -> None:
        self._run, self._trainer = run, run.config.trainer
        self._present: _Copy | None = None
        self._url = self._trainer.remote_dir or ""
        if (earlier := read(run.folder)).url not in ("", self._url):  # another folder may have copies of these names
            write(run.folder, replace(earlier, known=(), url=self._url))
        self._recurring = Recurring()

    def begin(self, path: Path) -> None:
        """Begin to copy a checkpoint, once the copy before is done or late.

        Raises:
            SaveError: as for :meth:`settle`.
        """
        self.settle()
        copy = self._present = _Copy(path.name)
        source = _linked(path, self._run.folder / LINKS / path.name)
        self._note(copy, "copying")
        copy.thread = Thread(target=self._work, args=(copy, path, source), name="corerl-remote", daemon=True)
        copy.thread.start()

    def settle(self, *, raises: bool = True) -> None:
        """Wait for the present copy, until its deadline.

        Raises:
            SaveError: it failed or is late, with ``trainer.on_save_error: stop``, and ``raises``.
        """
        copy, self._present = self._present, None
        if copy is None or copy.thread is None:
            return
        timeout = self._trainer.remote_timeout
        copy.thread.join(max(0.0, copy.began + timeout - time.monotonic()))
        if copy.thread.is_alive():
            copy.given_up.set()
            self._failed(copy, f"it took longer than {places.TIMEOUT} = {timeout:g} s")
        if copy.error and raises and self._trainer.on_save_error == "stop":
            raise SaveError(copy.error)

    def _work(self, copy: _Copy, path: Path, source: Path) -> None:
        config, system, target = self._run.config, None, ""
        try:
            assert config.trainer.remote_dir is not None
            system, base = places.opened(config.trainer.remote_dir)  # which may connect
            target = f"{base}/{config.tracking.experiment_name}/{self._run.folder.name}"
            self._copy(copy, system, target, path, source)
        except Exception as error:  # each file system has errors of its own
            if not copy.given_up.is_set():
                with suppress(Exception):
                    places.remove(system, f"{target}/{copy.name}")
                self._failed(copy, f"{type(error).__name__}: {error}")
        finally:
            if source != path and not copy.given_up.is_set():
                shutil.rmtree(source.parent, ignore_errors=True)

    def _copy(self, copy: _Copy, system: Any, target: str, path: Path, source: Path) -> None:
        """Copy all files, the mark last; then delete the copies of deleted checkpoints."""
        places.remove(system, f"{target}/{copy.name}")
        files = [file for file in sorted(source.rglob("*")) if file.is_file()]
        for file in sorted(files, key=lambda each: each == source / places.MARK):
            if copy.given_up.is_set():
                return
            place = f"{target}/{copy.name}/{file.relative_to(source).as_posix()}"
            system.makedirs(place.rpartition("/")[0], exist_ok=True)
            system.put_file(str(file), place)
        for name in places.BESIDE:
            if (file := self._run.folder / name).is_file():
                system.pipe_file(f"{target}/{name}", file.read_bytes())
        known = {*read(self._run.folder).known, copy.name}
        for name in [each for each in known if each != copy.name and not (path.parent / each).is_dir()]:
            if is_checkpoint(Path(name)):
                places.remove(system, f"{target}/{name}")
            known.remove(name)
        if not copy.given_up.is_set():
            self._note(copy, "copied", known=tuple(sorted(known, key=lambda name: step_of(Path(name)))))

    def _failed(self, copy: _Copy, reason: str) -> None:
        copy.error = f"{copy.name} could not be copied to {self._trainer.remote_dir}: {reason}"
        self._note(copy, "failed", error=reason)
        if self._trainer.on_save_error != "stop":
            goes_on = "the checkpoint itself is complete (trainer.on_save_error=continue)"
            self._recurring("copy", f"{copy.error}; {goes_on}")

    def _note(self, copy: _Copy, state: str, error: str = "", known: tuple[str, ...] | None = None) -> None:
        known = read(self._run.folder).known if known is None else known
        seconds = round(time.monotonic() - copy.began, 3)
        write(self._run.folder, Remote(copy.name, state, error, seconds, known, self._url))


def _linked(path: Path, links: Path) -> Path:
    """A folder of links to the files of a checkpoint; the checkpoint itself on a file system without links."""
    remove(links.parent)
    try:
        shutil.copytree(path, links, copy_function=os.link)
    except (OSError, shutil.Error):
        remove(links.parent)
        return path
    return links
