"""The process from which workers are forked, with all imports of the scorers loaded once.

A fork takes milliseconds, a new interpreter half a second, so a worker can be killed whenever its call goes wrong. The
run's own process, with its threads and its GPU, is never forked. The nursery runs no scorer and has no threads. When
the run's process ends, the nursery ends, with all workers and their child processes.

The file ``setup`` in the folder TMPDIR holds a pickled :class:`Setup`. Commands on the control socket, from the run:
``F`` and a worker's number, with the worker's end of its connection: fork; ``K`` and a number: kill that worker; ``A``:
request the same answer. To the run: ``B``, a number and a pid: a worker was forked; ``E``, a number and a wait status:
a worker ended; ``X`` and a text: the scorers cannot be loaded.
"""

import contextlib
import gc
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from corerl.contracts.scorers import Scorer
from corerl.registry import load_file
from corerl_rewards.folders import remove_folder
from corerl_rewards.isolation import linux
from corerl_rewards.isolation.worker import Limits, run

COMMAND = struct.Struct("<cQ")
MESSAGE = struct.Struct("<cQi")
FORK, KILL, ASK = b"F", b"K", b"A"
BORN, END, ANSWER, FAILED = b"B", b"E", b"A", b"X"
SETUP = "setup"
REMOVAL_SECONDS = 5.0
"""seconds for the removal of an ended worker's folder; the rest is removed at the end of the run"""
LIFE_SIGN = 1.0
"""seconds between checks that the run's process exists"""


@dataclass(frozen=True)
class Setup:
    """The scorers to load.

    Attributes:
        files: Python files outside packages that must be loaded first.
        scorers: data source -> pickled scorer: an importable name, and options.
    """

    files: list[str]
    scorers: dict[str, bytes]
    limits: Limits


def main() -> None:
    """Serve until the run closes the control socket."""
    parent = os.getppid()
    linux.continue_without_parent()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    folder = Path(os.environ["TMPDIR"])
    try:
        setup: Setup = pickle.loads((folder / SETUP).read_bytes())
        try:
            scorers = load(setup)
        except BaseException as error:
            control.send(FAILED + f"{type(error).__name__}: {error}"[:4000].encode(errors="replace"))
            return
        gc.collect()
        gc.freeze()
        linux.adopt_orphans()
        Nursery(control, scorers, setup.limits, folder, parent).serve()
    finally:
        remove_folder(folder)


def load(setup: Setup) -> dict[str, Scorer]:
    """Data source -> imported scorer."""
    broken: list[BaseException] = []
    for file in setup.files:
        try:
            load_file(file)
        except BaseException as error:
            broken.append(error)  # an error only if a scorer is in that file
    try:
        scorers: dict[str, Scorer] = {source: pickle.loads(pickled) for source, pickled in setup.scorers.items()}
    except ModuleNotFoundError as error:
        raise (broken[0] if broken else error) from error
    if verifier := sys.modules.get("corerl_rewards.scorers.verifier"):
        equal = verifier.load()  # once for all workers, with a warm parser
        if equal is not None:
            equal(r"\frac{1}{2}, \sqrt{2}", r"\{x : x^2 < 3\} \cup (0, 1]")
    return scorers


class Nursery:
    """Forks and kills workers, and reports their ends."""

    def __init__(
        self, control: socket.socket, scorers: Mapping[str, Scorer], limits: Limits, folder: Path, parent: int
    ) -> None:
        self._control = control
        self._scorers = scorers
        self._limits = limits
        self._folder = folder
        self._parent = parent
        self._inherited = linux.limits()
        self._numbers: dict[int, int] = {}
        """pid -> number of a living worker"""
        self._wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._wakeup.setblocking(False)

    def serve(self) -> None:
        """Run until the run closes the control socket, or ends."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(self._wakeup, selectors.EVENT_READ)
        try:
            while os.getppid() == self._parent:
                ready = [key.fileobj for key, _ in selector.select(LIFE_SIGN)]
                if self._wakeup in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._wakeup.recv(4096)
                    self._reap()
                if self._control in ready and not self._obey():
                    return
        except BrokenPipeError:  # the run ended during a message
            return
        finally:
            self._end_all()

    def _obey(self) -> bool:
        """Execute one command; False if there will be no more."""
        message, fds, _, _ = socket.recv_fds(self._control, COMMAND.size, 1, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return False
        what, number = COMMAND.unpack(message)
        if what == FORK:
            self._fork(number, fds[0])
        elif what == ASK:
            self._control.send(MESSAGE.pack(ANSWER, 0, 0))
        else:
            pid = next((pid for pid, each in self._numbers.items() if each == number), None)
            if pid is not None:
                _kill(pid)
        return True

    def _fork(self, number: int, descriptor: int) -> None:
        if linux.limits() != self._inherited:
            raise RuntimeError("the limits of this process were changed; its workers would inherit them")
        pid = os.fork()
        if not pid:
            self._become_worker(number, descriptor)
        os.close(descriptor)
        self._numbers[pid] = number
        with contextlib.suppress(OSError):  # the child does the same; the order does not matter
            os.setpgid(pid, pid)
        self._control.send(MESSAGE.pack(BORN, number, pid))

    def _become_worker(self, number: int, descriptor: int) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for mine in (self._control, self._wakeup, self._waker):
                mine.close()
            connection = socket.socket(fileno=linux.out_of_reach(descriptor))
            os.close(descriptor)
            _use_folder(self._folder / str(number))
            run(connection, self._scorers, self._limits)
            status = 0
        finally:
            os._exit(status)

    def _reap(self) -> None:
        """Collect ended children; with a worker, kill all its child processes."""
        ended = False
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if child is None:
                break
            if child.si_pid in self._numbers:
                _kill(child.si_pid)  # its group: the pid is its own until it is waited for
                ended = True
            _, status = os.waitpid(child.si_pid, 0)
            number = self._numbers.pop(child.si_pid, None)
            if number is not None:
                remove_folder(self._folder / str(number), REMOVAL_SECONDS)
                self._control.send(MESSAGE.pack(END, number, status))
        if ended:
            self._end_strays()

    def _end_strays(self) -> None:
        """Kill processes that left a worker's group and lost their parent; repeated, because these may fork."""
        for _ in range(200):
            strays = [pid for pid in linux.children() if pid not in self._numbers]
            if not strays:
                return
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _end_all(self) -> None:
        for pid in self._numbers:
            _kill(pid)
        for pid in self._numbers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._numbers.clear()
        self._end_strays()


def _use_folder(folder: Path) -> None:
    """Use ``folder`` for all temporary files of this process and its children."""
    folder.mkdir(parents=True)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
