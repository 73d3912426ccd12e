"""The run's side: the process of the nursery, and a connection to each worker."""

import contextlib
import errno
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from corerl.contracts.scorers import Scorer
from corerl.errors import PluginError, RunError
from corerl.registry import blocking
from corerl_rewards.folders import remove_folder
from corerl_rewards.isolation import linux, nursery
from corerl_rewards.isolation.clock import STOPPED_SECONDS, Clock
from corerl_rewards.isolation.connection import Worker
from corerl_rewards.isolation.worker import Limits

_PLUGIN_FILE = "corerl_file_"
"""prefix of the names of modules loaded from a file (corerl.registry.modules)"""

_PROGRAM = f"import sys; sys.path[:] = sys.argv[2:]; from {nursery.__name__} import main; main()"

CLOSE_SECONDS = 5.0
LOAD_SECONDS = 300.0
"""seconds in which the nursery must load the scorers"""
ANSWER_SECONDS = 10.0
"""seconds in which the nursery must answer, after it has loaded them"""
ASK_EVERY = 1.0
PARENT = "the process that scorers are started from"


class NurseryEndedError(RunError):
    """The nursery was killed or stopped; its workers end with it."""


class Pool:
    """Starts the nursery on creation; used by one thread, except :meth:`close`. No method waits for the nursery.

    Raises:
        PluginError: a scorer cannot be imported by another process.
    """

    def __init__(self, scorers: Mapping[str, Scorer], limits: Limits) -> None:
        pickled = _pickled(scorers)
        self._setup = nursery.Setup(_plugin_files(pickled.values()), pickled, limits)
        self._started = 0
        self._open()

    def _open(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="corerl-reward-"))
        (self._folder / nursery.SETUP).write_bytes(pickle.dumps(self._setup))
        self._unsent: deque[tuple[bytes, list[socket.socket]]] = deque()
        self._asked: Clock | None = None
        self._ask_at = 0.0
        self._is_loaded = False
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1", **os.environ, "TMPDIR": str(self._folder)},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def reopen(self) -> None:
        """Start another nursery after one that ended or does not answer."""
        self._process.kill()
        self.close()
        self._open()

    @property
    def pid(self) -> int:
        """The process id of the nursery."""
        return self._process.pid

    def start(self) -> Worker:
        """Request a worker."""
        self._started += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._command(nursery.FORK, self._started, theirs)
        return Worker(self._started, ours)

    def end(self, worker: Worker) -> None:
        """Kill a worker and all its child processes; the nursery reports the end."""
        if not worker.ending:
            worker.ending = True
            worker.clock.begin()
            self._command(nursery.KILL, worker.number)

    def messages(self) -> Iterator[tuple[bytes, int, int]]:
        """Messages of the nursery: a word, the number of a worker, and its pid or wait status.

        Raises:
            NurseryEndedError: the nursery ended.
            RunError: it could not load the scorers.
        """
        while True:
            try:
                message = self.control.recv(1 << 13)
            except BlockingIOError:
                return
            except ConnectionError:
                message = b""
            if message[:1] == nursery.FAILED:
                why = message[1:].decode(errors="replace")
                raise RunError(f"the scorers cannot be loaded in a worker process: {why}")
            if not message:
                raise self._ended()
            word, number, value = nursery.MESSAGE.unpack(message)
            self._is_loaded = True
            if word == nursery.ANSWER:
                self._asked = None
            else:
                yield word, number, value

    def look(self) -> None:
        """Send what could not be sent before, and check that the nursery answers.

        Raises:
            NurseryEndedError: the nursery ended, or has not answered in time.
            RunError: it has not loaded the scorers in time.
        """
        self._send()
        if self._asked is None:
            if time.monotonic() < self._ask_at:
                return
            self._asked = Clock()
            self._ask_at = self._asked.since + ASK_EVERY
            self._command(nursery.ASK, 0)
        self._asked.look(self.pid, family=False)
        if self._asked.stopped >= STOPPED_SECONDS:
            raise NurseryEndedError(f"{PARENT} (process {self.pid}) is stopped for {self._asked.stopped:.2g} s")
        seconds = ANSWER_SECONDS if self._is_loaded else LOAD_SECONDS
        if not self._asked.is_past(seconds):
            return
        if self._is_loaded:
            raise NurseryEndedError(f"{PARENT} (process {self.pid}) did not answer for {seconds:g} s")
        raise RunError(f"the scorers were not loaded in a worker process within {seconds:g} s: shorten their imports")

    def close(self) -> None:
        """Stop all processes."""
        self.control.close()
        for _, sockets in self._unsent:
            _close(sockets)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, and ends later
            self._process.wait(CLOSE_SECONDS)
        if self._process.returncode != 0:  # child processes of workers are still running
            linux.end_all_of(str(self._folder))
        remove_folder(self._folder)

    def _command(self, what: bytes, number: int, *sockets: socket.socket) -> None:
        self._unsent.append((nursery.COMMAND.pack(what, number), list(sockets)))
        self._send()

    def _send(self) -> None:
        while self._unsent:
            command, sockets = self._unsent[0]
            try:
                socket.send_fds(self.control, [command], [each.fileno() for each in sockets])
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                    raise
                for _ in self.messages():  # its last messages
                    continue
                raise self._ended() from None
            self._unsent.popleft()
            _close(sockets)

    def _ended(self) -> NurseryEndedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        how = "" if code is None else f" ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
        return NurseryEndedError(f"{PARENT} ended{how}")


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


def how_ended(status: int) -> str:
    """A wait status as text."""
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _plugin_files(pickled: Iterable[bytes]) -> list[str]:
    """The Python files of these scorers that were loaded for plugins or by ``./file.py:name``."""
    named = b"".join(pickled)
    modules = [
        module for name, module in sys.modules.items() if name.startswith(_PLUGIN_FILE) and name.encode() in named
    ]
    return [file for module in modules if (file := getattr(module, "__file__", None))]


def _pickled(scorers: Mapping[str, Scorer]) -> dict[str, bytes]:
    """Each scorer as its module, name and options; no code is sent."""
    pickled = {}
    for source, scorer in scorers.items():
        inner: Any = scorer
        while isinstance(inner, functools.partial | blocking):
            inner = inner.func
        if getattr(inner, "__module__", None) == "__main__":
            raise _not_importable(source, "it is defined in the program itself")
        try:
            pickled[source] = pickle.dumps(scorer, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise _not_importable(source, " ".join(str(error).split())) from error
    return pickled


def _not_importable(source: str, why: str) -> PluginError:
    return PluginError(
        f"the scorer of '{source}' cannot be loaded in a worker process ({why}): make it a function of a module or of "
        "./file.py, or choose reward.manager=naive, which calls it in this process"
    )
