"""What a reader must not do, seen by Python's audit events; and the deadline of a case."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")
CHANGES = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.symlink": 1, "os.link": 1, "os.chmod": 0}
"""event -> the argument that names what is changed"""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_active: "Watch | None" = None


class Forbidden(Exception):
    """A reader did what it must not do."""


class Late(BaseException):
    """A case took longer than it may. No Exception, which a reader may catch."""


class Watch:
    """Remembers what went wrong while a case was read."""

    def __init__(self, folder: Path, processes: bool) -> None:
        self.folder = str(folder.resolve())
        self.processes = processes
        self.seen: list[str] = []

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event."""
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes) and flags and flags & WRITES and flags & os.O_TMPFILE != os.O_TMPFILE:
                self._changes("open for writing", path)
        elif event in CHANGES and arguments[-1] == -1:  # a path that is relative to no descriptor
            self._changes(event, arguments[CHANGES[event]])
        elif event == "exec":
            name = getattr(arguments[0], "co_filename", "")
            if str(name).startswith(self.folder):
                self.seen.append(f"ran code of {name}")
        elif self.processes:
            return
        elif event == "pickle.find_class" or event in STARTS or event == "socket.connect":
            self.seen.append(f"{event} {arguments[:2]!r:.200}")

    def _changes(self, event: str, path: Any) -> None:
        try:
            given = Path(os.fsdecode(path))
            full = str(given.parent.resolve() / given.name)  # a link is changed itself
        except (TypeError, ValueError):  # a descriptor; a NUL, which no file has
            return
        if not full.startswith((self.folder, "/dev/")):
            self.seen.append(f"{event} outside of its folder: {full}")


def install() -> None:
    """Hear of every audit event from now on; there is no way back."""
    sys.dont_write_bytecode = True
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _active is not None:
        _active.hear(event, arguments)


@contextmanager
def watched(folder: Path, seconds: float, *, processes: bool) -> Iterator[None]:
    """
    Raises:
        Late: the block took longer than ``seconds``.
        Forbidden: it wrote outside of the folder, started a process, connected, or ran code that the folder holds.
    """
    global _active
    before = signal.signal(signal.SIGALRM, _ring)
    temporary, tempfile.tempdir = tempfile.tempdir, str(folder)
    watch = _active = Watch(folder, processes)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        _active, tempfile.tempdir = None, temporary
    if watch.seen:
        raise Forbidden("; ".join(watch.seen))


def _ring(number: int, frame: FrameType | None) -> None:
    raise Late
