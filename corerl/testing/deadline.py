"""Calling what may hang."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from corerl.testing.results import CheckFailed

T = TypeVar("T")
Report = Callable[[str, float], None]

_reports: list[Report] = []
_active: list[tuple[str, float]] = []
_lock = threading.Lock()


def report_to(report: Report) -> None:
    """Call ``report(what, seconds)`` whenever the oldest call with a deadline is another one, with "" and 0 for none.

    The process of an entry's checks does (:mod:`corerl.testing.child`): an implementation that holds the interpreter's
    lock lets no thread of its own process notice the deadline.
    """
    _reports[:] = [report]


@contextlib.contextmanager
def noted(what: str, seconds: float) -> Iterator[None]:
    """The calls in this ``with`` may take so many seconds; only the parent process sees to it."""
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
    """What ``function`` returns or raises; a fork of this process that comes back from it as well is ended."""
    process = os.getpid()
    try:
        return function()
    finally:
        if os.getpid() != process:
            os._exit(0)


def within(seconds: float, function: Callable[[], T], what: str) -> T:
    """What ``function`` returns or raises.

    It runs in a daemon thread: Python cannot end one that hangs, so that one is left behind.

    Args:
        what: was called, for the message.

    Raises:
        CheckFailed: it takes longer than ``seconds``.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(only_here(function))
        except BaseException as error:
            future.set_exception(error)

    with noted(what, seconds):
        threading.Thread(target=run, name="corerl-testing", daemon=True).start()
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                raise
    raise CheckFailed(f"{what} had not ended after {seconds:g} s")
