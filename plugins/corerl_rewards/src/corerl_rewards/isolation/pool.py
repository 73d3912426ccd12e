"""The run's half: the nursery's process, and a connection to each worker that it forks."""

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corerl.errors import PluginError, RunError
from corerl.registry.coroutines import blocking
from corerl.registry.scorers import Scorer
from corerl_rewards.folders import remove_folder
from corerl_rewards.isolation import nursery
from corerl_rewards.isolation.worker import LENGTH, LONGEST_LINE, Limits

_PLUGIN_FILE = "corerl_file_"
"""how modules begin that were loaded from a file (corerl.registry.modules)"""

_PROGRAM = f"import sys; sys.path[:] = sys.argv[2:]; from {nursery.__name__} import main; main()"

CLOSE_SECONDS = 5.0


class NurseryEndedError(RunError):
    """Somebody killed the nursery, and with it the workers."""


@dataclass(eq=False)
class Worker:
    """A process that scores what it was sent, in that order.

    Attributes:
        pid: None until it is ready.
        tasks: sent, and not answered.
        low: with no more of them it is sent some more.
        since: when the first of them began (``time.monotonic``).
        waited: for a processor, in seconds, before it was sent something last.
        excused: how much of the time of the first task it has waited for a processor.
        late: the first of them takes so long that the others were given to somebody else as well.
        behind: it lets all others go first, and is to end with that call.
        ending: the nursery was told to end it.
    """

    number: int
    connection: socket.socket
    pid: int | None = None
    tasks: deque[Any] = field(default_factory=deque)
    low: int = 0
    since: float = 0.0
    waited: float = 0.0
    excused: float = 0.0
    late: bool = False
    behind: bool = False
    ending: bool = False
    calls: int = 0
    unsent: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)

    def begin(self) -> None:
        """Its first task begins."""
        self.since = time.monotonic()
        self.excused = 0.0

    def send(self) -> None:
        """As much of ``unsent`` as the connection takes now."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the nursery tells when it ends
            del self.unsent[: self.connection.send(self.unsent)]

    @property
    def has_answered(self) -> bool:
        """Whether there is something to receive: this process may be slower than its workers."""
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def receive(self) -> list[bytearray] | None:
        """The lines that have come; None when the worker closed its connection or sends what is no line."""
        lines: list[bytearray] = []
        while True:
            try:
                data = self.connection.recv(1 << 16)
            except BlockingIOError:
                return lines
            except ConnectionError:
                data = b""
            if not data:
                return lines or None
            self.unread += data
            *complete, rest = self.unread.split(b"\n")
            self.unread = rest
            lines += complete
            if len(rest) > 2 * LONGEST_LINE:
                return lines or None
            if len(data) < 1 << 16:
                return lines


class Pool:
    """Starts the nursery at once; one thread uses it, but for :meth:`close`.

    Raises:
        PluginError: a scorer cannot be named to another process.
    """

    def __init__(self, scorers: Mapping[str, Scorer], limits: Limits) -> None:
        pickled = _pickled(scorers)
        folder = tempfile.mkdtemp(prefix="corerl-reward-")
        self._setup = nursery.Setup(_plugin_files(pickled.values()), pickled, limits, folder)
        self._started = 0
        self._open()

    def _open(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1", **os.environ},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            pickle.dump(self._setup, stdin)

    def reopen(self) -> None:
        """Start another nursery after one that ended."""
        self.close()
        self._open()

    @property
    def pid(self) -> int:
        """Of the nursery."""
        return self._process.pid

    def start(self) -> Worker:
        """Ask for a worker.

        Raises:
            NurseryEndedError: the nursery ended.
        """
        self._started += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._command(nursery.FORK, self._started, theirs)
        return Worker(self._started, ours)

    def end(self, worker: Worker) -> None:
        """Kill a worker and everything that it started; the nursery tells when that is done."""
        if not worker.ending:
            worker.ending = True
            self._command(nursery.KILL, worker.number)

    def next_end(self) -> tuple[int, str]:
        """Number of a worker that ended, and how, after :attr:`control` became readable.

        Raises:
            NurseryEndedError: the nursery ended.
            RunError: it could not load the scorers.
        """
        try:
            message = self.control.recv(1 << 13)
        except ConnectionError:
            message = b""
        if message[:1] == nursery.END:
            _, number, status = nursery.ENDED.unpack(message)
            return number, how_ended(status)
        if message[:1] == nursery.FAILED:
            raise RunError(f"the scorers cannot be loaded in a worker process: {message[1:].decode(errors='replace')}")
        raise self._ended()

    def close(self) -> None:
        """End all processes."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)
        self._process.kill()
        self._process.wait()
        remove_folder(self._setup.folder)

    def _command(self, what: bytes, number: int, *sockets: socket.socket) -> None:
        try:
            socket.send_fds(self.control, [nursery.COMMAND.pack(what, number)], [each.fileno() for each in sockets])
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise
            self.control.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:  # its last words
                    self.next_end()
            raise self._ended() from None

    def _ended(self) -> NurseryEndedError:
        deadline = time.monotonic() + 1.0
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self._process.returncode
        how = "" if code is None else f" ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
        return NurseryEndedError(f"the process that scorers are started from ended{how}")


def how_ended(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def frame(request: Any) -> bytes:
    """A request as a worker reads it."""
    pickled = pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(pickled)) + pickled


def _plugin_files(pickled: Iterable[bytes]) -> list[str]:
    """The Python files, loaded for plugins or ``./file.py:name``, that these scorers are from."""
    named = b"".join(pickled)
    modules = [
        module for name, module in sys.modules.items() if name.startswith(_PLUGIN_FILE) and name.encode() in named
    ]
    return [file for module in modules if (file := getattr(module, "__file__", None))]


def _pickled(scorers: Mapping[str, Scorer]) -> dict[str, bytes]:
    """Each scorer by its module and name, options beside it: no code travels."""
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
