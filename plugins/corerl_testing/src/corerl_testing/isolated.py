"""Runs the checks of an entry in a separate process, which can always be killed."""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from corerl.registry import Selected
from corerl_testing import child, deadline, zygote
from corerl_testing.results import CheckFailed, CheckSkipped, Run
from corerl_testing.zygote import OTHER_SEED, Job, Kind

HERE, OTHER = Kind(), Kind(OTHER_SEED)

GRACE = 3.0
"""seconds after which the process is killed, if it did not notice a deadline itself"""

SECONDS = 180.0
"""seconds for a check beside its calls with deadlines, and for the start of the process"""

ENDING = 5.0
"""seconds for the exit of a process that is not needed any more"""

HOLDS_THE_LOCK = (
    "and let no other thread of its process run, as a regular expression that backtracks does, or a power of large "
    "integers: limit what they are given, or use quantifiers that give nothing back, such as (?>a+) or a++"
)

_running: "list[Child]" = []
"""the process of the last checked entry, if any"""


def isolated(selected: Selected[Any], module: str, checks: Iterator[tuple[str, Run]]) -> Iterator[tuple[str, Run]]:
    """The checks of ``module`` for ``selected``, run in one shared process.

    After a failed check the process is ended, and the next check gets a new one.
    """
    names = [name for name, _ in checks]
    for name in names:
        yield name, partial(_run, selected, module, name, name == names[-1])


def _run(selected: Selected[Any], module: str, name: str, is_last: bool) -> None:
    process = _process(selected, module)
    try:
        result = process.run(name)
    except BaseException:
        end_running(kill=True)
        raise
    if is_last or result.status == "failed":
        end_running()
    if result.status == "skipped":
        raise CheckSkipped(result.reason)
    if result.status == "failed":
        raise CheckFailed(result.reason) from (InChild(result.trace) if result.trace else None)


class InChild(Exception):
    """The traceback of an exception in the process of the check."""

    def __str__(self) -> str:
        return f"in the process of the check:\n{self.args[0]}"


def _process(selected: Selected[Any], module: str) -> "Child":
    if not (_running and _running[0].selected is selected and _running[0].is_mine):
        end_running()
        _running.append(Child(selected, module))
    return _running[0]


@atexit.register
def end_running(kill: bool = False) -> None:
    """End the process of the last check."""
    while _running:
        _running.pop().end(kill)


class Child:
    """A process that runs checks of ``selected``.

    It is a fork of a fresh interpreter if this process has threads or torch, whose locks a fork would inherit, and the
    entry can be imported by name; otherwise it is a fork of this process.
    """

    def __init__(self, selected: Selected[Any], module: str) -> None:
        """
        Raises:
            CheckFailed: the process does not start.
        """
        _fill_standard_descriptors()
        self.selected = selected
        self._owner = os.getpid()
        self._code: int | None = None
        self._ended_by = ""
        self._folder = Path(tempfile.mkdtemp(prefix="corerl-check-"))
        shared = threading.active_count() > 1 or "torch" in sys.modules
        if not (shared and self._spawn(module)) and not self._fork(module):
            cause = self._ended_by
            self.end(kill=True)
            raise CheckFailed(f"the process of its checks did not start{cause}: see what it wrote to standard error")

    @property
    def is_mine(self) -> bool:
        """Whether this process started it; false in a fork of the process that did."""
        return self._owner == os.getpid()

    def _spawn(self, module: str) -> bool:
        """Whether a new interpreter can import the entry by name."""
        sent = by_name((self.selected, module))
        if sent is None:
            return False
        files, arguments = sent
        zygote.start(OTHER)  # started early, for the check in a fresh process
        try:
            process = zygote.fork(HERE, Job(files), child.main, self._folder, *arguments)
        except (CheckFailed, CheckSkipped):
            return False
        self._pid, self._connection, self._is_child = process.pid, process.connection, False
        return self._greets()

    def _fork(self, module: str) -> bool:
        self._connection, theirs = multiprocessing.Pipe()
        self._is_child = True
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # about forks beside threads, which cannot be avoided here
            self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            child.forked(self.selected, module, theirs, self._folder, parent)
        theirs.close()
        return self._greets()

    def _greets(self) -> bool:
        """Whether the process is ready in time."""
        try:
            if self._connection.poll(SECONDS) and isinstance(self._receive(), child.Begun):
                return True
        except (EOFError, OSError):
            self._ended_by = self._cause()
        self._end_process(kill=True)
        return False

    def run(self, name: str) -> child.Result:
        """Run a check.

        Raises:
            CheckFailed: the check hangs, or ends the process.
        """
        begun = nothing = child.Begun(f"the check {name}", SECONDS)
        try:
            self._connection.send((name, deadline.share()))
            while self._connection.poll(begun.seconds + GRACE):
                message = self._receive()
                if isinstance(message, child.Result):
                    return message
                begun = message if message.what else nothing
        except (EOFError, OSError) as error:
            raise CheckFailed(f"{begun.what} ended the process{self._cause()}: raise an exception instead") from error
        raise CheckFailed(f"{begun.what} had not ended after {begun.seconds:g} s {HOLDS_THE_LOCK}")

    def _receive(self) -> Any:
        """
        Raises:
            EOFError: the process has ended.
        """
        message = self._connection.recv()
        if isinstance(message, zygote.Ended):
            self._code = message.code
            raise EOFError
        return message

    def _cause(self) -> str:
        """The way in which the process ended, in parentheses; "" if it is running."""
        code = self._wait(GRACE)
        if code is None:
            return ""
        return f" ({signal.Signals(-code).name})" if code < 0 else f" (exit code {code})"

    def _wait(self, seconds: float) -> int | None:
        """The exit code; None if the process is running, or was waited for before."""
        ends = time.monotonic() + seconds
        if not self._is_child:
            with contextlib.suppress(EOFError, OSError):
                while self._code is None and self._connection.poll(max(0.0, ends - time.monotonic())):
                    self._receive()
            return self._code
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    return os.waitstatus_to_exitcode(status)
                if time.monotonic() > ends:
                    break
                time.sleep(0.002)
        return None

    def end(self, kill: bool = False) -> None:
        """End the process with all processes that it started, and remove its files.

        Args:
            kill: do not wait for its exit.
        """
        if self.is_mine:
            self._end_process(kill)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end_process(self, kill: bool) -> None:
        started = _descendants(self._pid)  # before its end: afterwards they cannot be found
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as own:
            own.shutdown(socket.SHUT_WR)
        if kill or self._wait(ENDING) is None:
            started |= _descendants(self._pid)
            _kill(os.kill, self._pid)
            self._wait(ENDING)
        _kill(os.killpg, self._pid)
        for pid in started:
            _kill(os.kill, pid)
        self._connection.close()


def by_name(objects: Any) -> tuple[list[str], Any] | None:
    """Plugin files to load, and ``objects`` in a form for another process; None if one cannot be imported there."""
    try:
        pickled = pickle.dumps(objects)
    except Exception:  # raised by the __reduce__ of any object
        return None
    if b"__main__" in pickled:
        return None
    modules = [(name, module.__file__) for name, module in list(sys.modules.items()) if name.startswith("corerl_file_")]
    return [file for name, file in modules if file and name.encode() in pickled], objects


def _fill_standard_descriptors() -> None:
    """Open 0, 1 and 2 if they are closed: otherwise a pipe gets their numbers, and receives printed text."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def _kill(send: Callable[[int, int], None], pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(pid, signal.SIGKILL)


def _descendants(pid: int) -> set[int]:
    """The processes started by ``pid`` and its children; empty if there is no /proc."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {each for each, parent in parents.items() if parent in grown} - found
        found |= grown
    return found
