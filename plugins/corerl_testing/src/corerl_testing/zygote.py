"""Fresh processes in milliseconds: forked from an interpreter that was started clean and has made no calls.

A fork has no state of this process. Environment, import path, working folder and plugin files are part of the job.
PYTHONHASHSEED, which an interpreter reads at its start, cannot change, so there is one interpreter for each seed.
"""

import atexit
import contextlib
import ctypes
import importlib
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from corerl.registry import load_file
from corerl_testing.results import CheckFailed, CheckSkipped

PR_SET_PDEATHSIG = 1

START = 600.0
"""seconds for the start of the interpreter, with its imports"""

SEED, OTHER_SEED = "0", "4711"
"""values of PYTHONHASHSEED"""


@dataclass(frozen=True)
class Kind:
    """The settings of an interpreter.

    Attributes:
        seed: seed of Python's hashes.
        modules: imported before the first fork, so that forks need not import them.
    """

    seed: str = SEED
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """The state that a fork sets up before its function is called; by default that of this process."""

    files: Sequence[str] = ()
    folder: str = field(default_factory=os.getcwd)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    path: Sequence[str] = field(default_factory=lambda: list(sys.path))
    addresses: Mapping[Kind, str] = field(default_factory=lambda: dict(_addresses))


@dataclass(frozen=True)
class Ended:
    """The last message of a process: its exit code, negative for a signal."""

    code: int


@dataclass
class Process:
    """A fork, and the connection to it."""

    pid: int
    connection: Connection


_ENDED = "the interpreter that forks new processes has ended"

_addresses: dict[Kind, str] = {}
"""the interpreters started by this process, or by the process of which it is a fork"""


def fork(kind: Kind, job: Job, function: Callable[..., None], *arguments: Any) -> Process:
    """Call a module's ``function(connection, *arguments)`` in a fresh process, which then ends.

    Raises:
        CheckSkipped: this system has no ``os.fork``.
        CheckFailed: the interpreter ends twice, or is not ready after ``START`` seconds.
    """
    for _ in range(2):  # the interpreter may have been killed
        start(kind)
        try:
            connection = _connection(_addresses[kind])
            connection.send(job)
            _send(connection, (function, arguments))
            if not connection.poll(START):
                raise CheckFailed(f"the interpreter that forks new processes was not ready after {START:g} s")
            return Process(connection.recv(), connection)
        except (EOFError, OSError):
            _addresses.pop(kind, None)
    raise CheckFailed(_ENDED)


def call(kind: Kind, job: Job, seconds: float, function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """("returned", result of ``function`` in a fresh process), or ("raised", …) with the reason for a missing result.

    Args:
        seconds: limit for the call, without the start of the process.
    """
    process = fork(kind, job, _answer, function, arguments)
    with process.connection as connection:
        try:
            if not connection.poll(seconds):
                return "raised", f"it gave no answer within {seconds:g} s"
            answer: tuple[str, Any] | Ended = connection.recv()
        except (EOFError, OSError) as error:
            raise CheckFailed(_ENDED) from error
        finally:
            kill(process.pid)  # with its child processes
    return ("raised", f"it ended its process (exit code {answer.code})") if isinstance(answer, Ended) else answer


def start(kind: Kind) -> None:
    """Start the interpreter if necessary; it imports its modules in the background.

    Raises:
        CheckSkipped: this system has no ``os.fork``.
    """
    if not hasattr(os, "fork"):
        raise CheckSkipped("this system cannot fork processes")
    if kind in _addresses:
        return
    folder = tempfile.mkdtemp(prefix="corerl-zygote-")
    address = str(Path(folder, "s"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        given = f"{listener.fileno()}, {kind.modules!r}"
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path[:] = {sys.path!r}; from corerl_testing import zygote; zygote.serve({given})",
            ],
            stdin=subprocess.PIPE,  # it is closed at the end of this process
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": kind.seed, "OMP_NUM_THREADS": "1"},
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    _addresses[kind] = address
    atexit.register(_end, os.getpid(), process, folder)


def _end(owner: int, process: subprocess.Popen[bytes], folder: str) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _connection(address: str) -> Connection:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        return Connection(client.detach())


def _send(connection: Connection, message: Any) -> None:
    """Send tensors by value: ``Connection.send`` would share their memory."""
    connection.send_bytes(pickle.dumps(message))


def serve(fd: int, modules: Sequence[str]) -> None:
    """The interpreter: one fork for each connection, which gets the exit code; a closed connection ends the fork."""
    for name in modules:
        importlib.import_module(name)
    listener, parent = socket.socket(fileno=fd), os.getpid()
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    poll = select.poll()
    for each in (0, fd, heard):
        poll.register(each, select.POLLIN)
    running: dict[int, tuple[int, Connection]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready == 0:  # the parent has ended
                shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)
                os._exit(0)
            elif ready == heard:
                os.read(heard, 4096)
                for one in _ended(running):
                    with contextlib.suppress(KeyError):
                        poll.unregister(one)
            elif ready == fd:
                connection = Connection(listener.accept()[0].detach())
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (fd, heard, told, *running):
                        os.close(each)
                    _work(connection, parent)
                running[connection.fileno()] = pid, connection
                poll.register(connection, 0)  # only its closing
            elif ready in running:
                poll.unregister(ready)
                kill(running[ready][0])


def _ended(running: dict[int, tuple[int, Connection]]) -> Iterator[int]:
    """Send the exit codes of ended forks to their callers; yields their descriptors."""
    pids = {pid: file for file, (pid, _) in running.items()}
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        file = pids[pid]
        yield file
        with contextlib.suppress(OSError), running.pop(file)[1] as connection:
            connection.send(Ended(os.waitstatus_to_exitcode(status)))


def kill(pid: int) -> None:
    """Kill a fork, with its group."""
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def end_with(parent: int) -> None:
    """Kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _work(connection: Connection, parent: int) -> None:
    """The fork; does not return."""
    code = 1
    try:
        os.setsid()
        end_with(parent)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)  # prints of an implementation
        job: Job = connection.recv()
        sys.path[:] = job.path
        os.environ.clear()
        os.environ.update(job.environment)
        time.tzset()
        tempfile.tempdir = None
        _addresses.clear()
        _addresses.update(job.addresses)
        os.chdir(job.folder)
        connection.send(os.getpid())
        broken = _load(job.files)
        try:
            function, arguments = connection.recv()
        except Exception as error:
            connection.send(("raised", "; ".join([f"it raised {type(error).__name__}: {error}", *broken])))
            return
        function(connection, *arguments)
        code = 0
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(code)


def _answer(connection: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    process = os.getpid()
    try:
        answer = "returned", function(*arguments)
    except Exception as error:
        answer = "raised", f"it raised {type(error).__name__}: {error}"
    if os.getpid() == process:  # not a fork that returned from the call
        try:
            _send(connection, answer)
        except Exception as error:
            connection.send(("raised", f"it gave what no process can send: {error}"))
    os._exit(0)  # skip exit handlers of the implementation


def _load(files: Sequence[str]) -> list[str]:
    """Load plugin files; returns the errors. A file of an earlier caller, not needed now, may be missing or broken."""
    errors = []
    for file in files:
        try:
            load_file(file)
        except Exception as error:
            errors.append(f"{file}: {type(error).__name__}: {error}")
    return errors
