"""``status.json`` of a run folder: who runs it, since when, and how it ended.

A run that is killed cannot say so. The file therefore names its process, by the machine's boot, its number and the time
of its start, and a reader on that machine sees whether it is still there.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import time
from typing import Any

from corerl.files import atomic_path, reading
from corerl.telemetry.metrics_tail import last_step

FILE = "status.json"


@dataclass(frozen=True)
class RunStatus:
    """What ``status.json`` holds.

    Attributes:
        state: ``running``; ``finished`` (its last step was taken); ``stopped`` (it ended before, on request);
            ``failed``; and, never written but found out by :func:`read_status`, ``killed``.
        total_steps: that the run is to take.
        host, pid, process: the controller's; ``process`` tells a later process of the same number from it.
        started, ended: seconds since 1970; a resumed run has those of its last start.
        error: of a run that failed, the kind of error and what it said.
        restarts: times in this start that lost workers were started again.
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
    """The status of a run that goes on."""

    def __init__(self, folder: Path, total_steps: int) -> None:
        pid = os.getpid()
        self._folder = folder
        self._status = RunStatus("running", total_steps, socket.gethostname(), pid, _process(pid), time())
        write_status(folder, self._status)

    def restarted(self) -> None:
        """Count a restart of the workers."""
        self._change(restarts=self._status.restarts + 1)

    def end(self, state: str, error: str | None) -> None:
        """Write how the run ended."""
        self._change(state=state, ended=time(), error=error)

    def _change(self, **values: Any) -> None:
        self._status = replace(self._status, **values)
        with suppress(OSError):  # of a full disk: the run's own error matters more
            write_status(self._folder, self._status)


KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("state", "host", "process"), str),
    **dict.fromkeys(("total_steps", "pid"), int),
    "started": int | float,
    "ended": int | float | None,
    "error": str | None,
}


@contextmanager
def recorded(folder: Path, total_steps: int) -> Iterator[StatusFile]:
    """Write that the run goes on, and at the end how it ended."""
    status = StatusFile(folder, total_steps)
    state, message = "failed", None
    try:
        yield status
        state = "finished" if last_step(folder / "metrics.jsonl") >= total_steps else "stopped"
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


def read_status(folder: Path) -> RunStatus | None:
    """The status of a run, ``killed`` when it says that it goes on and its process is gone; None without a file.

    Whether a process of another machine goes on cannot be seen from here: its run is ``running`` as it says.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    with reading(path):
        status = RunStatus(**json.loads(path.read_text()))
        for name, kind in KINDS.items():
            if not isinstance(getattr(status, name), kind):
                raise TypeError(f"{name} is {getattr(status, name)!r:.100}")
    here = status.host == socket.gethostname()
    if status.state == "running" and here and _process(status.pid) != status.process:
        return replace(status, state="killed")
    return status


def _process(pid: int) -> str:
    """What tells a process from every other with its number; '' when there is none. A zombie is no process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _signalled(pid)
    return "" if fields[0] in "ZX" else f"{boot}/{pid}/{fields[19]}"


def _signalled(pid: int) -> str:
    """Where there is no /proc: whether some process has the number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return str(pid)
