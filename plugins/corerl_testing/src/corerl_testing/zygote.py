"""Fresh processes in milliseconds: an interpreter that was started clean and has called nothing forks for each of them.

A fork has no state of this process. Environment, import path, working folder and plugin files come with the job; what
an interpreter reads as it starts, PYTHONHASHSEED, is the interpreter's own, so that there is one for each seed.
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
"""seconds that the interpreter may take to start, with what it imports"""

SEED, OTHER_SEED = "0", "4711"
"""values of PYTHONHASHSEED"""


@dataclass(frozen=True)
class Kind:
    """What the interpreter is started with.

    Attributes:
        seed: of Python's hashes.
        modules: imported before the first fork, so that no fork has to.
    """

    seed: str = SEED
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """What a fork takes over before its function is called: all of it from this process unless it is given."""

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
    """A fork, and the way to it."""

    pid: int
    connection: Connection


_ENDED = "the interpreter that forks new processes has ended"

_addresses: dict[Kind, str] = {}
"""of the interpreters that this process has started, or the one that it is a fork's fork of"""


def fork(kind: Kind, job: Job, function: Callable[..., None], *arguments: Any) -> Process:
    """Call ``function(connection, *arguments)``, of a module, in a fresh process, which ends after it.

    Raises:
        CheckSkipped: this system has no ``os.fork``.
        CheckFailed: the interpreter ends again and again, or is not ready after ``START`` seconds.
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
    """("returned", what ``function`` returns in a fresh process), or ("raised", …) with the reason why it does not.

    Args:
        seconds: that it may take once the process is there.
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
            kill(process.pid)  # with what the implementation has started
    return ("raised", f"it ended its process (exit code {answer.code})") if isinstance(answer, Ended) else answer


def start(kind: Kind) -> None:
    """Start the interpreter unless it is there; it begins to import while this process goes on.

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
            stdin=subprocess.PIPE,  # which ends with this process
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
    """Tensors by value: ``Connection.send`` shares their memory."""
    connection.send_bytes(pickle.dumps(message))


def serve(fd: int, modules: Sequence[str]) -> None:
    """The interpreter: a fork for each connection, which gets its exit code, and is ended when the asker hangs up."""
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
                poll.register(connection, 0)  # hanging up alone
            elif ready in running:
                poll.unregister(ready)
                kill(running[ready][0])


def _ended(running: dict[int, tuple[int, Connection]]) -> Iterator[int]:
    """Tell whoever asked for a fork that has ended; its file."""
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
    """End a fork, with its group."""
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def end_with(parent: int) -> None:
    """End this process when its parent ends."""
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
        os.dup2(2, 1)  # what an implementation prints
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
    if os.getpid() == process:  # and no fork of it that came back from the call
        try:
            _send(connection, answer)
        except Exception as error:
            connection.send(("raised", f"it gave what no process can send: {error}"))
    os._exit(0)  # whatever the implementation would do or wait for at exit


def _load(files: Sequence[str]) -> list[str]:
    """Load plugin files; the errors. A file that the job does not need, of an earlier caller, may be gone or broken."""
    errors = []
    for file in files:
        try:
            load_file(file)
        except Exception as error:
            errors.append(f"{file}: {type(error).__name__}: {error}")
    return errors
