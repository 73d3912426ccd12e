"""An engine's process: started in its own environment, spoken to over a socket that only the two share."""

import contextlib
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.engines import remote
from corerl.engines.remote import ending, frames
from corerl.errors import ConfigError, DeadlineError, RunError
from corerl.files import remove

ENDING_SECONDS = ending.GRACE + 1.0

LOG = "engine.log"
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

LOG_LINES = 8
LINE_LENGTH = 600
CAUSE = re.compile(
    r"^(?:.*?\s)?(?:\w+\.)*\w*(?:Error|Exception|Interrupt): .+$|^(?:\(.*?\) )?(?:ERROR .*\] )?\w*(?:Error|Exception)$"
)
CONSEQUENCES = (
    "Engine core initialization failed",
    "EngineDeadError",
    "EngineCore encountered",
    "see root cause",
    "Worker failed with error",
    "the engine's core is dead",
)

OF_ONE_INTERPRETER = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

Answer = tuple[dict[str, Any], bytes]


@dataclass(frozen=True)
class EngineKind:
    """What is particular to one engine.

    Attributes:
        name: of the rollout backend, and of the Python package that holds the engine.
        title: as its makers write it.
        package: folder of the plugin's package for the engine's process; its module ``adaptor`` starts the engine.
    """

    name: str
    title: str
    package: Path


class EngineProcess:
    """Starts at once; :meth:`wait_for` its events, then :meth:`ask`.

    The process leads a group of its own, which dies as a whole: by :meth:`close`, with the leader, or (the engine's
    half sees to it) with this process, however that ends.
    """

    def __init__(
        self, kind: EngineKind, python: str | None, environment: Mapping[str, str], settings: Mapping[str, Any]
    ) -> None:
        """
        Args:
            python: interpreter; None means this one.
            environment: variables beside those of this process.
            settings: for the adaptor.

        Raises:
            ConfigError: there is no such interpreter.
        """
        self._kind = kind
        self._interpreter = find_interpreter(python, kind.name)
        self._folder = Path(tempfile.mkdtemp(prefix=f"corerl-{kind.name}-"))
        (self._folder / "corerl_engine").symlink_to(Path(remote.__file__).parent)
        (self._folder / kind.package.name).symlink_to(kind.package)
        self._log = self._folder / LOG
        self._keep_log = self._closed = False
        self._connection, theirs = socket.socketpair()
        with theirs, os.fdopen(os.open(self._log, NEW_FILE, 0o600), "wb") as log:
            self._process = subprocess.Popen(
                [self._interpreter, "-m", "corerl_engine", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(environment, foreign=python is not None),
                cwd=self._folder,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Future[Answer]] = {}
        self._events: dict[str, Future[dict[str, Any]]] = {}
        self._end = ""
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._transmit, name=f"corerl-{kind.name}-out", daemon=True).start()
        threading.Thread(target=self._receive, name=f"corerl-{kind.name}", daemon=True).start()
        threading.Thread(target=self._watch, name=f"corerl-{kind.name}-watch", daemon=True).start()
        self._send(frames.pack({"library": kind.name, "adaptor": f"{kind.package.name}.adaptor", **settings}))

    @property
    def pid(self) -> int:
        """Of the group's leader."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Nobody else's to read; :meth:`close` removes it, except for a log that an error has named."""
        return self._folder

    def wait_for(self, event: str, seconds: float, what: str) -> dict[str, Any]:
        """The engine's message of that name.

        Raises:
            DeadlineError: it did not come within ``seconds``.
            RunError: the engine ended or sent ``failed``.
        """
        with self._lock:
            future = self._events.setdefault(event, Future())
            if self._end and not future.done():
                future.set_exception(RunError(self._end))
        message: dict[str, Any] = self._result(future, seconds, what)
        return message

    def submit(self, operation: str, **arguments: Any) -> "tuple[int, Future[Answer]]":
        """Ask for an operation; the call's number, and its answer.

        Raises:
            RunError: the engine is dead or closed.
        """
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()  # who awaits it may be cancelled, the answer comes all the same
        with self._lock:
            if self._end:
                raise RunError(self._end)
            self._number += 1
            number = self._number
            self._waiting[number] = future
        self._send(frames.pack({"operation": operation, "number": number, **arguments}))
        return number, future

    def ask(self, operation: str, seconds: float, **arguments: Any) -> dict[str, Any]:
        """The answer to an operation.

        Raises:
            DeadlineError: it did not come within ``seconds``.
            RunError: the engine refuses, is dead or closed.
        """
        return self.answer(self.submit(operation, **arguments)[1], operation, seconds)

    def answer(self, future: "Future[Answer]", operation: str, seconds: float) -> dict[str, Any]:
        """As :meth:`ask`, for what was submitted before."""
        what = f"{operation} in the {self._kind.title} engine (rollout.options.timeout)"
        return self.checked(self._result(future, seconds, what)[0])

    def checked(self, header: dict[str, Any]) -> dict[str, Any]:
        """The answer itself.

        Raises:
            RunError: it is a refusal.
        """
        if not_ready := header.get("not_ready"):
            raise RunError(f"the rollout backend {self._kind.name} cannot generate: {not_ready}")
        if error := header.get("error"):
            raise RunError(f"the {self._kind.title} engine refused: {error}")
        return header

    def close(self) -> None:
        """End the group and wait for its leader."""
        if self._closed:
            return
        self._closed = True
        self._fail(f"the rollout backend {self._kind.name} is closed")
        self._end_group()
        self._outgoing.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that not even SIGKILL ends waits for a device
            self._process.wait(timeout=30)
        self._connection.close()
        if not self._keep_log:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        for path in self._folder.iterdir():
            if path != self._log:
                remove(path)

    def last_lines(self) -> str:
        """The most telling line of the log, the last ones, and where it is: from now on it stays there."""
        self._keep_log = True
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return "its log is gone"
        lines = [line.rstrip()[:LINE_LENGTH] for line in lines if line.strip()]
        causes = [
            match[0] for line in lines if (match := CAUSE.match(line)) and not any(c in line for c in CONSEQUENCES)
        ]
        tail = "\n  ".join(lines[-LOG_LINES:])
        cause = f"the last error in its log: {causes[-1].strip()}; " if causes else ""
        return f"{cause}the last lines of its log ({self._log}):\n  {tail}" if lines else "it wrote no log"

    def _environment(self, own: Mapping[str, str], *, foreign: bool) -> dict[str, str]:
        environment = {**(for_another_interpreter() if foreign else os.environ), **own}
        paths = [str(self._folder), environment.get("PYTHONPATH", "")]
        return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}

    def _send(self, message: bytes) -> None:
        self._outgoing.put(message)

    def _transmit(self) -> None:
        """In a thread of its own: an engine that is stuck reads nothing, and who asks it must reach its deadline."""
        with contextlib.suppress(OSError):  # the watching thread tells all who wait why
            while (message := self._outgoing.get()) is not None:
                self._connection.sendall(message)

    def _receive(self) -> None:
        while True:
            try:
                header, payload = frames.receive(self._connection)
                if "event" in header:
                    self._take_event(header)
                    continue
                with self._lock:
                    future = self._waiting.pop(int(header["number"]), None)
                if future is not None:
                    future.set_result((header, payload))
            except (EOFError, OSError):
                return
            except (ValueError, KeyError, TypeError, MemoryError) as error:
                self._fail(
                    f"the {self._kind.title} engine (process {self.pid}) sent what is no message "
                    f"({type(error).__name__}: {error!s:.200}); {self.last_lines()}"
                )
                self._end_group()
                return

    def _take_event(self, header: dict[str, Any]) -> None:
        kind = self._kind
        if header["event"] == "missing":
            self._fail(
                f"{self._interpreter} cannot import {kind.title} ({header['message']}): "
                f"make an environment with it (corerl engine install {kind.name}) and name it in rollout.options.python"
            )
        elif header["event"] != "failed":
            with self._lock:
                future = self._events.setdefault(header["event"], Future())
            if not future.done():
                future.set_result(header)

    def _watch(self) -> None:
        """Tell everybody who waits that the engine ended, and leave none of its processes behind."""
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._end_group()
        if self._end:  # closed, or it said itself why it ends
            return
        self._fail(f"the {self._kind.title} engine (process {self.pid}) ended with {how}; {self.last_lines()}")

    def _fail(self, why: str) -> None:
        with self._lock:
            if self._end:
                return
            self._end = why
            futures: list[Future[Any]] = [*self._waiting.values(), *self._events.values()]
            self._waiting.clear()
        for future in futures:
            if not future.done():
                future.set_exception(RunError(why))

    def _end_group(self) -> None:
        """Hang up: the engine's half ends its group then. Kill what is left of it."""
        with contextlib.suppress(OSError):  # closed, or hung up, before
            self._connection.shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + ENDING_SECONDS
        while ending.members(self.pid) and time.monotonic() < end:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _result(self, future: "Future[Any]", seconds: float, what: str) -> Any:
        try:
            return future.result(seconds)
        except FutureTimeoutError:
            raise DeadlineError(f"{what} took longer than {seconds:g} s; {self.last_lines()}") from None


def for_another_interpreter() -> dict[str, str]:
    """This process's variables without those that would reach into another interpreter's imports."""
    return {name: value for name, value in os.environ.items() if name not in OF_ONE_INTERPRETER}


def find_interpreter(python: str | None, engine: str) -> str:
    """The path of an interpreter; None means this one.

    Raises:
        ConfigError: there is no such program.
    """
    if python is None:
        return sys.executable
    found = shutil.which(Path(python).expanduser())
    if found is None:
        raise ConfigError(
            "rollout.options.python",
            f"{python} is no program: name the interpreter that `corerl engine install {engine}` printed",
        )
    return str(Path(found).absolute())
