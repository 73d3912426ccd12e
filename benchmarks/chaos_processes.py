"""The processes of a run, found by their parents: for chaos.py, to which they come when their own parents end."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36

PROGRAMS = {"raylet": "raylet", "gcs_server": "gcs"}
"""a file's name -> the role"""
NAMES = {
    "log_monitor.py": "agent",
    "dashboard/agent.py": "agent",
    "runtime_env/agent": "agent",
    "ray::DashboardAgent": "agent",
    "ray::RuntimeEnvAgent": "agent",
    "-m corerl_engine ": "engine",
}
"""a part of a command line -> the role"""


@dataclass(frozen=True)
class Process:
    """A process that is no zombie.

    Attributes:
        started: in ticks since the boot; distinguishes it from a later process with its number.
    """

    pid: int
    parent: int
    started: str
    command: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """None: there is none."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[1]), fields[19], command.strip())

    @property
    def is_there(self) -> bool:
        now = Process.of(self.pid)
        return now is not None and now.started == self.started

    def send(self, number: signal.Signals) -> None:
        """A signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def __str__(self) -> str:
        return f"{self.pid} {self.command[:80]}"


def adopt_orphans() -> None:
    """From now on processes whose parents end become children of this one."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def reap() -> dict[int, int]:
    """Children of this process that have ended -> their exit codes, as of subprocess."""
    codes = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def descendants() -> dict[int, Process]:
    """Of this process."""
    every = [Process.of(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    present = {process.pid: process for process in every if process is not None}
    found = {os.getpid()}
    grown = True
    while grown:
        more = {process.pid for process in present.values() if process.parent in found} - found
        found |= more
        grown = bool(more)
    return {pid: present[pid] for pid in found - {os.getpid()} if pid in present}


def by_role(controller: int, notes: Path) -> dict[str, list[Process]]:
    """The processes of a run that have a role of their own.

    Args:
        notes: of chaos_plugin.py.
    """
    present = descendants()
    found: dict[str, list[Process]] = {}
    for process in present.values():
        found.setdefault(_role(process, present, controller, notes), []).append(process)
    found.pop("", None)
    return found


def _role(process: Process, present: dict[int, Process], controller: int, notes: Path) -> str:
    if process.pid == controller:
        return "controller"
    with contextlib.suppress(FileNotFoundError, ValueError):
        role, started = (notes / "pids" / str(process.pid)).read_text().split()
        if started == process.started:
            return role
    parent = present.get(process.parent)
    if "corerl_rewards.isolation.nursery" in process.command:
        return "scorer" if parent is not None and parent.command == process.command else "nursery"
    if "EngineCore" in process.command:
        return "core"
    program = process.command.partition(" ")[0].rpartition("/")[2]
    if program in PROGRAMS:
        return PROGRAMS[program]
    role = next((role for part, role in NAMES.items() if part in process.command), "")
    return "" if role == "engine" and parent is not None and parent.command == process.command else role


def await_none(look: Callable[[], list[str]], seconds: float) -> list[str]:
    """What is still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
        reap()
    return left
