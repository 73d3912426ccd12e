"""An engine's process: started in its own environment, and connected by a private socket."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

from corerl.contracts.rollout_backends import EngineLoad
from corerl.errors import DeadlineError, RunError
from corerl_engines.launched import EngineKind as EngineKind
from corerl_engines.launched import Launched
from corerl_engines.liveness import Patience, Silence
from corerl_engines.nodes import Follower
from corerl_engines.remote import ending, frames

ENDING_SECONDS = ending.GRACE + 1.0

NOTHING_OWED = ("generate", "cancel")
"""slow operations"""

LEADERS_OWN = ("abort", "cancel", "health")
"""operations that an engine's leader may answer alone, independent of its other processes"""

Answer = tuple[dict[str, Any], bytes]

FOLLOWERS_NEWS = 0.5
"""seconds after the end of a process, in which the end of a follower that caused it becomes known"""

FOLLOWERS_REASON = 30.0
"""seconds for the reason of this end, from another node"""

_DEFAULT = Patience()


class EngineProcess:
    """Starts on creation; then :meth:`wait_for` its events, and :meth:`ask`.

    The process leads a group of its own, which ends as a whole: by :meth:`close`, with the leader, or (done by the
    engine's side) with this process, even if this process is killed. The group's folder, which also holds its temporary
    files, is removed at its end.

    A ready engine that hangs with an open request (:mod:`corerl_engines.liveness`) is killed. A generating engine that
    sends nothing is probed for a sign of life: one token.

    Attributes:
        load: the engine's last report; None: it makes none.
        followers: its processes on other nodes; the engine ends with the first that does.
    """

    load: EngineLoad | None = None
    followers: Sequence[Follower] = ()

    def __init__(
        self,
        kind: EngineKind,
        python: str | None,
        environment: Mapping[str, str],
        settings: Mapping[str, Any],
        patience: Patience = _DEFAULT,
        logs: Path | None = None,
        followers: Sequence[Follower] = (),
    ) -> None:
        """
        Args:
            python: interpreter; None means this one.
            environment: variables beside those of this process.
            settings: settings for the adaptor, also of the followers'.
            logs: folder for the log, if an error names it; None: a folder of the user.

        Raises:
            ConfigError: there is no such interpreter, or it cannot be run.
        """
        self._kind = kind
        self._patience, self._closed, self._began = patience, False, time.monotonic()
        self._connection, theirs = socket.socketpair()
        try:
            with theirs:
                self._launched = Launched(kind, python, environment, theirs, logs)
        except BaseException:
            self._connection.close()
            raise
        self._process = self._launched.process
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Future[Answer]] = {}
        self._owed: dict[int, str] = {}
        """operation of each waiting call"""
        self._heard = 0
        """numbers of answers from all parts of the engine, and from more than the leader"""
        self._of_some: tuple[str, ...] = LEADERS_OWN
        """operations that the leader alone can answer"""
        self._events: dict[str, Future[dict[str, Any]]] = {}
        self._end = ""
        self._over = threading.Event()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._transmit, name=f"corerl-{kind.name}-out", daemon=True).start()
        threading.Thread(target=self._receive, name=f"corerl-{kind.name}", daemon=True).start()
        threading.Thread(target=self._watch, name=f"corerl-{kind.name}-watch", daemon=True).start()
        given = {"library": kind.name, "adaptor": f"{kind.package.name}.adaptor", **settings}
        self._send(frames.pack(given))
        self.followers = followers
        for follower in followers:
            follower.start(given, self._lose)

    @property
    def pid(self) -> int:
        """The process id of the group's leader."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """A folder that only this user can read."""
        return self._launched.folder

    def is_starting(self) -> bool:
        """Whether the engine has neither sent ``ready`` nor ended."""
        with self._lock:
            ready = self._events.get("ready")
            return not (self._end or (ready is not None and ready.done()))

    def wait_for(self, event: str, seconds: float, what: str) -> dict[str, Any]:
        """Wait for the engine's message of that name.

        Raises:
            DeadlineError: the message did not arrive within ``seconds`` of the start.
            RunError: the engine ended or sent ``failed``.
        """
        with self._lock:
            future = self._events.setdefault(event, Future())
            if self._end and not future.done():
                future.set_exception(RunError(self._end))
        message: dict[str, Any] = self._result(future, seconds, what, since=self._began)
        return message

    def submit(self, operation: str, **arguments: Any) -> "tuple[int, Future[Answer]]":
        """Start an operation; returns the call's number, and its future answer.

        Raises:
            RunError: the engine is dead or closed.
        """
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()  # a waiting task may be cancelled, but the answer still arrives
        with self._lock:
            if self._end:
                raise RunError(self._end)
            self._number += 1
            number = self._number
            self._waiting[number] = future
            self._owed[number] = operation
        self._send(frames.pack({"operation": operation, "number": number, **arguments}))
        return number, future

    def ask(self, operation: str, seconds: float, **arguments: Any) -> dict[str, Any]:
        """The answer to an operation.

        Raises:
            DeadlineError: the answer did not arrive within ``seconds``.
            RunError: the engine refuses, is dead or closed.
        """
        return self.answer(self.submit(operation, **arguments)[1], operation, seconds)

    def answer(self, future: "Future[Answer]", operation: str, seconds: float) -> dict[str, Any]:
        """As :meth:`ask`, for a submitted call; an engine that does not answer in time is killed."""
        what = f"{operation} in the {self._kind.title} engine (rollout.options.timeout)"
        try:
            header, _ = self._result(future, seconds, what)
        except DeadlineError as error:
            self._give_up(str(error))
            raise
        return self.checked(header)

    def checked(self, header: dict[str, Any]) -> dict[str, Any]:
        """The answer, checked.

        Raises:
            RunError: the answer is a refusal.
        """
        if not_ready := header.get("not_ready"):
            raise RunError(f"the rollout backend {self._kind.name} cannot generate: {not_ready}")
        if error := header.get("error"):
            raise RunError(f"the {self._kind.title} engine refused: {error}")
        return header

    def close(self) -> None:
        """Kill the group and wait for its leader."""
        if self._closed:
            return
        self._closed = True
        self._fail(f"the rollout backend {self._kind.name} is closed")
        self._end_group()
        self._outgoing.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that survives SIGKILL waits for a device
            self._process.wait(timeout=30)
        self._connection.close()
        self._launched.remove()

    def last_lines(self) -> str:
        """The log's line with the likely cause, its last lines and its path; the log is kept from now on."""
        return self._launched.log.last_lines()

    def _send(self, message: bytes) -> None:
        self._outgoing.put(message)

    def _transmit(self) -> None:
        """Send messages in a separate thread: a stuck engine reads nothing, and a waiting caller must reach its
        deadline.
        """
        with contextlib.suppress(OSError):  # the watching thread reports the reason to all waiting calls
            while (message := self._outgoing.get()) is not None:
                self._connection.sendall(message)

    def _receive(self) -> None:
        while True:
            try:
                header, payload = frames.receive(self._connection)
                if "event" in header:
                    self._take_event(header)
                    continue
                number = int(header["number"])
                with self._lock:
                    future = self._waiting.pop(number, None)
                    self._heard += self._owed.pop(number, "") not in self._of_some
                if future is not None:
                    future.set_result((header, payload))
            except (EOFError, OSError):
                return
            except (ValueError, KeyError, TypeError, MemoryError) as error:
                self._fail(
                    f"the {self._kind.title} engine (process {self.pid}) sent an invalid message "
                    f"({type(error).__name__}: {error!s:.200}); {self.last_lines()}"
                )
                self._end_group()
                return

    def _take_event(self, header: dict[str, Any]) -> None:
        kind = self._kind
        if header["event"] == "load":
            self.load = EngineLoad(**header["load"]) if header["load"] else None
        elif header["event"] == "missing":
            self._fail(
                f"{self._launched.interpreter} cannot import {kind.title} ({header['message']}): "
                f"make an environment with it (corerl engine install {kind.name}) and name it in rollout.options.python"
            )
        elif header["event"] != "failed":
            with self._lock:
                future = self._events.setdefault(header["event"], Future())
            if not future.done():
                future.set_result(header)
            if header["event"] == "ready":
                if header.get("parts", 1) > 1:  # one part may hang while others generate
                    self._of_some = (*LEADERS_OWN, "generate")
                threading.Thread(target=self._look_after, name=f"corerl-{self._kind.name}-life", daemon=True).start()

    def _look_after(self) -> None:
        """Kill a hanging engine with an open request; probe a generating engine that sends nothing."""
        silence, looked = Silence(self.pid, self._patience.look), time.monotonic()
        before: tuple[int, int | None] | None = None
        while not self._over.wait(self._patience.look):
            passed, looked = time.monotonic() - looked, time.monotonic()
            with self._lock:
                owed = [number for number, operation in self._owed.items() if operation not in NOTHING_OWED]
                oldest, generates = min(owed, default=None), "generate" in self._owed.values()
                operation = "" if oldest is None else self._owed[oldest]
                now = (self._heard, oldest)
            if now != before or not (owed or generates):
                silence, before = Silence(self.pid, self._patience.look), now
                continue
            silence.look(passed, at_processes=bool(owed))
            if owed and (how_long := silence.over(self._patience)):
                what = "a probe, which asks for one token," if operation == "probe" else operation
                self._give_up(
                    f"the {self._kind.title} engine (process {self.pid}) hangs: it did not answer {what} {how_long}; "
                    f"its log: {self._launched.log.kept_path()}"
                )
            elif not owed and silence.seconds >= self._patience.probe_interval:
                with contextlib.suppress(RunError):  # the engine ended
                    self.submit("probe")

    def _watch(self) -> None:
        """Fail all waiting calls when the engine ends, and kill all its remaining processes."""
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._end_group()
        if self._end:  # closed, or the engine sent its own reason
            return
        ended = time.monotonic()
        while self.followers and not self._end:
            limit = FOLLOWERS_REASON if any(each.is_gone for each in self.followers) else FOLLOWERS_NEWS
            if time.monotonic() > ended + limit:
                break
            time.sleep(0.05)
        self._fail(f"the {self._kind.title} engine (process {self.pid}) ended with {how}; {self.last_lines()}")

    def _lose(self, follower: Follower) -> None:
        """Kill an engine one of whose followers has ended."""
        if not self._end:
            self._give_up(self._without(follower))

    def _without(self, follower: Follower) -> str:
        return f"the {self._kind.title} engine (process {self.pid}) has lost {follower.end}"

    def _give_up(self, why: str) -> None:
        """Kill an engine that does not answer."""
        self._fail(why)
        self._end_group()

    def _fail(self, why: str) -> None:
        with self._lock:
            if self._end:
                return
            self._end = why
            futures: list[Future[Any]] = [*self._waiting.values(), *self._events.values()]
            self._waiting.clear()
            self._owed.clear()
        self._over.set()
        for follower in self.followers:
            follower.close()
        for future in futures:
            if not future.done():
                future.set_exception(RunError(why))

    def _end_group(self) -> None:
        """Close the connection, after which the engine's side kills its group. Then kill the remaining processes."""
        with contextlib.suppress(OSError):  # already closed
            self._connection.shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + ENDING_SECONDS
        while ending.members(self.pid) and time.monotonic() < end:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _result(self, future: "Future[Any]", seconds: float, what: str, since: float | None = None) -> Any:
        passed = 0.0 if since is None else time.monotonic() - since
        try:
            return future.result(max(0.0, seconds - passed))
        except FutureTimeoutError:
            raise DeadlineError(f"{what} took longer than {seconds:g} s; {self.last_lines()}") from None
