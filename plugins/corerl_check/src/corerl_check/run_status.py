"""``status.json`` of a run folder: its process, its start, its end.

A killed run writes no end. On the same machine, a reader sees by ``process`` whether the process still exists.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import time
from typing import Any

from corerl.files import atomic_path

FILE = "status.json"

LONGEST_RECORD = 2**20
"""bytes of a line of ``metrics.jsonl``"""


@dataclass(frozen=True)
class RunStatus:
    """What ``status.json`` holds.

    Attributes:
        state: ``running``; ``finished`` (its last step was taken); ``stopped`` (it ended before, on request);
            ``failed``; of readers, which see that the process has ended, ``killed``.
        total_steps: that the run is to take.
        host, pid, process: the controller's; ``process`` is its :func:`process_mark`.
        started, ended: seconds since 1970; a resumed run has those of its last start.
        error: kind and message of the error that ended the run.
        restarts: of lost workers, since ``started``.
    """

    state: str
    total_steps: int
    host: str
    pid: int
    process: str
    started: float
    ended: float | None = None
    error: str | None = None
    restarts: int = 0


class StatusFile:
    """Writes the status of a run."""

    def __init__(self, folder: Path, total_steps: int) -> None:
        pid = os.getpid()
        self._folder = folder
        self._status = RunStatus("running", total_steps, socket.gethostname(), pid, process_mark(pid), time())
        write_status(folder, self._status)

    def restarted(self) -> None:
        """Count a restart of the workers."""
        self._change(restarts=self._status.restarts + 1)

    def end(self, state: str, error: str | None) -> None:
        """Write the end of the run."""
        self._change(state=state, ended=time(), error=error)

    def _change(self, **values: Any) -> None:
        self._status = replace(self._status, **values)
        with suppress(OSError):  # of a full disk: the run's own error matters more
            write_status(self._folder, self._status)


@contextmanager
def recorded(folder: Path, total_steps: int) -> Iterator[StatusFile]:
    """Write the status of a run, now and at its end."""
    status = StatusFile(folder, total_steps)
    state, message = "failed", None
    try:
        yield status
        state = "finished" if _last_step(folder / "metrics.jsonl") >= total_steps else "stopped"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise
    except BaseException:  # Ctrl-C, or an exit that was asked for
        state = "stopped"
        raise
    finally:
        status.end(state, message)


def write_status(folder: Path, status: RunStatus) -> None:
    """Write ``status.json``, whole or not at all."""
    with atomic_path(folder / FILE) as temporary:
        temporary.write_text(json.dumps(asdict(status), indent=2) + "\n")


def process_mark(pid: int) -> str:
    """A text that no other process has, of the same number before or after; '' if there is no such process.

    A zombie is no process. Without /proc the text is the number alone.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else str(pid)
    return "" if fields[0] in "ZX" else f"{boot}/{pid}/{fields[19]}"


def _last_step(metrics: Path) -> int:
    """The step of the last whole record; -1 if there is none."""
    if not metrics.is_file():
        return -1
    with metrics.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_RECORD))
        *_, last, _ = [b'{"step": -1}', *file.read().split(b"\n")]  # behind the last line end is what a kill cut off
    return int(json.loads(last)["step"])
