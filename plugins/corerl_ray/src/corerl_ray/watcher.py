"""A process beside the controller: if Ray ends the run silently, it reports the reason and kills remaining processes
of a cluster that the run has started.

If the raylet or the GCS ends, Ray's C++ code ends the controller, without running any more Python.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corerl_check.run_status import FILE, RunStatus, write_status
from corerl_ray.answers import Answers
from corerl_ray.processes import stat

MARK = "CORERL_RAY_CLUSTER"
"""variable in the environment of a cluster's processes and their children"""
LOOK = 0.25
"""seconds between two checks"""
ENDING = 10.0
"""seconds in which killed processes are gone, if the kernel lets them go"""
OWN_END = 5.0
"""seconds that a process in a session of its own has to end by itself: an engine removes its files then"""
PATIENCE = 60.0
"""seconds that the controller has to end by itself once a process of its cluster hangs"""
SESSION, EXIT_CODE = 3, 49
"""of the fields of /proc/PID/stat after the name"""
NEEDED = ("raylet", "gcs_server")
"""processes of a cluster without which Ray ends the controller"""


@dataclass
class Health:
    """The processes of a cluster of this machine, without which Ray ends the controller.

    Attributes:
        processes: name -> process id.
        hang_timeout: seconds for which a process may be stopped.
        lost: the reason why the cluster does not work any more; '' if it works.
        hangs: the reason is a stopped process.
    """

    processes: Mapping[str, int]
    hang_timeout: float
    lost: str = ""
    hangs: bool = False
    _stopped: dict[str, float] = field(default_factory=dict)

    def look(self, *, patiently: bool = True) -> str:
        """Notice processes that have ended, or are stopped for too long; returns ``lost``."""
        now = time.monotonic()
        for name, pid in self.processes.items():
            state = stat(pid).state
            if not state:
                self.lost = self.lost or f"Ray's {name} (process {pid}) has ended"
            elif state != "T":
                self._stopped.pop(name, None)
            elif now - self._stopped.setdefault(name, now) > self.hang_timeout and not self.lost:
                self.lost, self.hangs = f"Ray's {name} (process {pid}) is stopped for {self.hang_timeout:.0f} s", True
        return self.lost


@dataclass
class Watch:
    """The controller's messages, and the watcher's observations.

    Attributes:
        controller: its process id.
        logs: the folder of Ray's logs; '' while the cluster starts.
        mark: of the cluster's processes.
        folder: of the run.
        left: the controller has noticed, and is about to end by itself.
        killed: somebody has sent SIGKILL to the controller; its cluster ends with it, and perhaps sooner.
    """

    controller: int
    cluster: Health | Answers
    logs: str
    mark: str
    folder: str = ""
    left: bool = False
    killed: bool = False
    _kill_at: float = float("inf")

    def receive(self, message: Mapping[str, Any]) -> None:
        """Handle a message of the controller (:meth:`Watcher.send`)."""
        self.folder, self.left = message.get("folder", self.folder), message.get("left", self.left)
        self.logs = message.get("logs", self.logs)
        if "servers" in message:
            self.cluster = Answers(message["servers"], patience=0.0)
        elif "processes" in message and isinstance(self.cluster, Health):
            self.cluster, self._kill_at = Health(message["processes"], self.cluster.hang_timeout), float("inf")

    def look(self) -> None:
        """Check the cluster; kill the controller if the cluster hangs and the controller does not end."""
        if isinstance(self.cluster, Answers):  # the controller asks
            return
        if not self.logs:
            self.cluster.processes = {**self.cluster.processes, **_starting(self.controller)}
        if self.cluster.look():
            self.killed |= _was_killed(self.controller)
        if self.cluster.hangs:
            self._kill_at = min(self._kill_at, time.monotonic() + PATIENCE)
        if time.monotonic() > self._kill_at and not self.left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.controller, signal.SIGKILL)

    def report(self) -> None:
        """Print why the run ended, and write the reason into its status, unless it is already there."""
        reason = f"{self.cluster.lost}; this ended the run"
        reason += f" (Ray's logs: {self.logs})" if self.logs else ", during its start"
        status, folder = self._status(), Path(self.folder)
        if status is not None:
            if status.state == "running":
                with contextlib.suppress(OSError):  # the disk may be full
                    write_status(folder, replace(status, state="failed", ended=time.time(), error=reason))
            elif status.error:
                reason = status.error.partition(": ")[2]
            latest = folder / "checkpoints" / "latest"
            if latest.is_file():
                reason += f"; the last checkpoint is {latest.parent / latest.read_text().strip()}"
        print(f"error: {reason}", file=sys.stderr, flush=True)

    def _status(self) -> RunStatus | None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            status = RunStatus(**json.loads((Path(self.folder) / FILE).read_text()))
            return status if self.folder and status.pid == self.controller else None
        return None

    def end_processes(self) -> None:
        """Kill the cluster's processes and their children.

        They have its mark in their environment, or, if they have written their title over it, a process group of its
        own. An engine ends with its worker; it is killed only if it does not.
        """
        if isinstance(self.cluster, Answers):  # the processes are others'
            return
        mark, groups = f"{MARK}={self.mark}".encode(), set(self.cluster.processes.values())
        began = time.monotonic()
        while (passed := time.monotonic() - began) < ENDING:
            left = [pid for pid in _processes() if mark in _environment(pid) or _group(pid) in groups]
            if not left:
                return
            for pid in left:
                if passed < OWN_END and _has_own_session(pid):
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def _has_own_session(pid: int) -> bool:
    """Not the one of this process and of Ray's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[SESSION]) != os.getsid(0)


def _processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _starting(controller: int) -> dict[str, int]:
    """The children of a controller that a cluster needs, by name."""
    found = {}
    for listed in Path(f"/proc/{controller}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in map(int, listed.read_text().split()):
                program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
                found[Path(program).name] = pid
    return {name: found[name] for name in NEEDED if name in found}


def _environment(pid: int) -> list[bytes]:
    """The environment of another process; empty for processes of other users, and for zombies."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _group(pid: int) -> int:
    """Process group of one of Ray's processes that is no zombie; -1 for any other process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        is_of_ray = b"ray" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return -1
    return int(fields[2]) if is_of_ray and fields[0] not in "ZX" else -1


class Watcher:
    """The controller's side; it may start before the cluster.

    Args:
        hang_timeout: seconds for which a process of the cluster may be stopped.
        mark: mark in the environment of the cluster's processes.
    """

    def __init__(self, hang_timeout: float, mark: str) -> None:
        watch = [os.getpid(), hang_timeout, mark]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "corerl_ray.watcher", json.dumps(watch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            process_group=0,  # gets no signals of the controller's group
        )

    def send(self, **message: Any) -> None:
        """``processes``: of a started cluster, with ``logs``; none and '': a cluster is about to start.

        ``servers``: of a cluster that others run, with ``logs``. ``folder``: of the run. ``left``: the controller must
        not be killed. ``end``: the watcher is not needed any more.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the watcher has ended
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Let the watcher kill the remains of the cluster, and end."""
        self.send(end=True)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(watch: Watch) -> None:
    """Watch until the controller has ended, or sends ``end``."""
    os.set_blocking(0, False)
    heard, rest, is_over = {0}, b"", False
    while not is_over:
        is_over = os.getppid() != watch.controller  # its last messages are still read
        if not is_over:
            watch.look()
        ready = select.select(heard, [], [], 0 if is_over else LOOK)[0]
        heard -= {*ready} - {0}  # the check above covers these
        more = _read()
        if more == b"":
            heard.discard(0)
        *lines, rest = (rest + (more or b"")).split(b"\n")
        for message in map(json.loads, lines):
            watch.receive(message)
            heard |= {*_ends_of(message.get("processes", {}).values())}
            if message.get("end"):
                watch.end_processes()
                return
    try:
        watch.killed |= _was_killed(watch.controller)
        if isinstance(watch.cluster, Answers):
            watch.cluster.look(patiently=False)
        if watch.cluster.lost and (watch.cluster.hangs or not watch.killed):
            watch.report()
    finally:  # even if the report cannot be printed
        watch.end_processes()


def _was_killed(pid: int) -> bool:
    """By SIGKILL, as far as the kernel still says: nothing once somebody has taken its exit code."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    pending = re.search(r"^ShdPnd:\s*(\w+)", status, re.MULTILINE)
    return int(fields[EXIT_CODE]) == signal.SIGKILL or bool(pending and int(pending[1], 16) >> (signal.SIGKILL - 1) & 1)


def _read() -> bytes | None:
    """The controller's message; b'' at the end, None if there is none."""
    try:
        return os.read(0, 65536)
    except BlockingIOError:
        return None


def _ends_of(processes: Iterable[int]) -> Iterator[int]:
    """Descriptors that become readable at the end of these processes, if the system has them."""
    for pid in processes:
        with contextlib.suppress(AttributeError, OSError):
            yield os.pidfd_open(pid)


if __name__ == "__main__":
    controller, hang_timeout, mark = json.loads(sys.argv[1])
    main(Watch(controller, Health({}, hang_timeout), "", mark))
