"""Calls that may hang."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from corerl_testing.results import CheckFailed

T = TypeVar("T")
Report = Callable[[str, float], None]

_reports: list[Report] = []
_active: list[tuple[str, float]] = []
_lock = threading.Lock()


def report_to(report: Report) -> None:
    """Call ``report(what, seconds)`` whenever another call becomes the oldest one with a deadline; "" and 0 for none.

    The process of an entry's checks uses this (:mod:`corerl_testing.child`): if an implementation holds the interpreter
    lock, no thread of its own process can notice the deadline.
    """
    _reports[:] = [report]


@contextlib.contextmanager
def noted(what: str, seconds: float) -> Iterator[None]:
    """Calls in this ``with`` may take ``seconds``; only the parent process enforces it."""
    call = (what, seconds)
    with _lock:
        _active.append(call)
        _report()
    try:
        yield
    finally:
        with _lock:
            _active.remove(call)
            _report()


def _report() -> None:
    for report in _reports:
        report(*(_active[0] if _active else ("", 0.0)))


def only_here(function: Callable[[], T]) -> T:
    """The result of ``function``; a fork of this process that also returns from the call is ended."""
    process = os.getpid()
    try:
        return function()
    finally:
        if os.getpid() != process:
            os._exit(0)


_patience = 1.0


@contextlib.contextmanager
def patience(share: float) -> Iterator[None]:
    """Multiply every deadline of checks, for an implementation that is known to hang."""
    global _patience
    before, _patience = _patience, share
    try:
        yield
    finally:
        _patience = before


def share() -> float:
    """The factor of :func:`patience`."""
    return _patience


def scaled(seconds: float) -> float:
    """A deadline multiplied by :func:`share`."""
    return seconds * _patience


class Lane:
    """Calls with a deadline, one after the other in one daemon thread.

    Python cannot stop a hanging thread: the lane leaves it behind and continues in another thread.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] | None = None

    def within(self, seconds: float, function: Callable[[], T], what: str) -> T:
        """Return the result of ``function``, or raise its exception.

        Args:
            what: name of the call, for the message.

        Raises:
            CheckFailed: the call takes longer than ``seconds``.
        """
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._calls,), name="corerl-testing", daemon=True).start()
        future: Future[T] = Future()
        with noted(what, scaled(seconds)):  # before the call: it may end the process
            self._calls.put((future, function))
            try:
                return future.result(scaled(seconds))
            except TimeoutError:
                if future.done():
                    raise
        self.end()
        raise CheckFailed(f"{what} had not ended after {scaled(seconds):g} s")

    def end(self) -> None:
        """Stop the thread when it is idle; a later call starts another."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def within(seconds: float, function: Callable[[], T], what: str) -> T:
    """As :meth:`Lane.within`, in a new thread."""
    lane = Lane()
    try:
        return lane.within(seconds, function, what)
    finally:
        lane.end()


def _work(calls: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    while (call := calls.get()) is not None:
        future, function = call
        try:
            future.set_result(only_here(function))
        except BaseException as error:
            future.set_exception(error)
        del call, future, function  # otherwise an idle thread keeps the last call's objects
