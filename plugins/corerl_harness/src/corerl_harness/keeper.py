"""The process between a run and a command: it starts the command, limits it, and ends all that the command started.

Run as a file, with this package's folder as the argument. The first line of stdin holds settings in JSON
(:meth:`corerl_harness.process.Command.settings`); stdin then stays open, and its end means that the run gives up the
command. Stdout gets one report in JSON (:class:`corerl_harness.process.Ended`).

Orphans of the command become children of this process (PR_SET_CHILD_SUBREAPER), so it finds them whatever session or
group they are in.
"""

import contextlib
import ctypes
import functools
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
LOOK_SECONDS = (0.02, 0.1)
"""between two looks at the processes: at first, and later"""
DISK_SECONDS = 0.5
"""between two looks at the files, or 20 times as long as a look takes"""


def main() -> None:
    """Keep one command."""
    sys.path.insert(0, sys.argv[1])
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the run, which then closes stdin
    report = Keeper(settings).run()
    os.write(1, json.dumps(report).encode() + b"\n")
    os._exit(0)


class Keeper:
    """One command from its start to the end of its last process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._families, self._groups = importlib.import_module("families"), importlib.import_module("groups")
        self._confinement = importlib.import_module("confinement")
        self._settings = settings
        self._output = Output(settings["kept"])
        self._most_memory = self._most_tasks = 0
        self._start = time.monotonic()
        self._next_look = self._next_disk = self._start
        self._status: int | None = None
        self._group, self._refused = "", 0

    def run(self) -> dict[str, Any]:
        """The report."""
        wakeup, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        try:
            process = self._begin()
        except (OSError, subprocess.SubprocessError) as error:
            self._end_group()
            return self._report("not started", error=str(error))
        how = self._watch(process, wakeup)
        seconds = time.monotonic() - self._start
        strays = self._families.end(os.getpid(), reap=True)
        self._end_group()
        if how == "ended" and self._status and self._refused:
            how = "tasks"
        assert process.stdout is not None
        self._output.drain(process.stdout.fileno())
        return self._report(how, seconds=seconds, strays=strays if how == "ended" else 0)

    def _begin(self) -> "subprocess.Popen[bytes]":
        limits = self._settings["limits"]
        if limits["rlimits"] and self._settings["group"]:
            self._group = self._groups.make(*self._settings["group"], limits["tasks"])
        process = subprocess.Popen(
            self._settings["command"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._settings["environment"],
            cwd=self._settings["folder"],
            start_new_session=True,
            preexec_fn=functools.partial(self._confinement.confine, self._settings, self._group),
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def _end_group(self) -> None:
        if self._group:
            self._refused = self._groups.refused(self._group)
            self._groups.end(self._group)

    def _watch(self, process: "subprocess.Popen[bytes]", wakeup: int) -> str:
        """Wait for the end of the command, or a reason to end it."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            for descriptor in (0, wakeup, process.stdout.fileno()):
                selector.register(descriptor, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(self._patience())}
                if wakeup in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wakeup, 4096)
                    if self._reap(process.pid):
                        return "ended"
                if 0 in ready and not os.read(0, 4096):
                    return "given up"
                if process.stdout.fileno() in ready and not self._output.take(process.stdout.fileno()):
                    selector.unregister(process.stdout.fileno())  # the command has closed its output
                if how := self._excess():
                    return how

    def _patience(self) -> float:
        now = time.monotonic()
        deadline: float = self._start + self._settings["seconds"]
        return max(0.0, min(self._next_look, deadline) - now)

    def _reap(self, pid: int) -> bool:
        """Wait for ended children; whether the command itself has ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    self._status = os.waitstatus_to_exitcode(ended[1])
        return self._status is not None

    def _excess(self) -> str:
        now, limits = time.monotonic(), self._settings["limits"]
        if now - self._start >= self._settings["seconds"]:
            return "timeout"
        if self._output.bytes > limits["output"]:
            return "output"
        if now < self._next_look:
            return ""
        used = self._families.use(self._families.family(os.getpid()))
        self._most_memory, self._most_tasks = max(self._most_memory, used.memory), max(self._most_tasks, used.tasks)
        first, later = LOOK_SECONDS
        self._next_look = time.monotonic() + min(later, first + (now - self._start) / 20)
        if not limits["rlimits"]:
            return ""
        if used.memory > limits["memory"]:
            return "memory"
        if used.tasks > limits["tasks"]:
            return "tasks"
        return self._disk_excess(now, limits["disk"])

    def _disk_excess(self, now: float, most: int) -> str:
        if now < self._next_disk:
            return ""
        used = disk_use(self._settings["disk_folder"], most)
        took = time.monotonic() - now
        self._next_disk = time.monotonic() + max(DISK_SECONDS, 20 * took)
        return "disk" if used > most else ""

    def _report(self, how: str, seconds: float = 0.0, strays: int = 0, error: str = "") -> dict[str, Any]:
        return {
            "how": how,
            "status": self._status,
            "seconds": seconds,
            "memory": self._most_memory,
            "tasks": self._most_tasks,
            "strays": strays,
            "in_group": bool(self._group),
            "output": self._output.text(),
            "output_bytes": self._output.bytes,
            "error": error,
        }


class Output:
    """The beginning and the end of what a command prints.

    Args:
        kept: bytes.
    """

    def __init__(self, kept: int) -> None:
        self.bytes = 0
        self._half = kept // 2
        self._head, self._tail = bytearray(), bytearray()

    def take(self, descriptor: int) -> bool:
        """Read what there is; False at the end of the output."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, 1 << 16)
            self._keep(data)
            return bool(data)
        return True

    def drain(self, descriptor: int) -> None:
        """Read the rest that ended processes have left in the pipe."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(descriptor, 1 << 20):
                self._keep(data)

    def _keep(self, data: bytes) -> None:
        self.bytes += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-self._half :]

    def text(self) -> str:
        """The kept output, with a note in place of the rest."""
        left_out = self.bytes - len(self._head) - len(self._tail)
        note = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return bytes(self._head + note + self._tail).decode(errors="replace")


def disk_use(folder: str, most: int) -> int:
    """Bytes on disk of a folder's entries; stops once they exceed ``most``. Each entry counts 512 bytes at least."""
    total, todo = 0, [folder]
    while todo and total <= most:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += max(512, entry.stat(follow_symlinks=False).st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
    return total


if __name__ == "__main__":
    main()
