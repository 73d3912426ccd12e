"""A bound on the time and the memory of code that somebody else wrote and a thread of this process runs."""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LOOK = 0.1
"""seconds between two looks"""

AGAIN = 5.0
"""seconds between two interrupts of a thread"""

IDLE = 20
"""looks without work after which the watching thread ends"""


class BoundError(Exception):
    """The code took too much."""


class _Interrupt(BaseException):
    """Raised in the thread that is bounded: no ``except Exception`` of the code holds it up."""


@dataclass
class _Work:
    """Of one thread.

    Attributes:
        began: seconds of computing of the thread until then.
        memory: bytes of the process at the first look.
        excess: what was too much.
        again: when it is interrupted once more: an interrupt in a ``__del__`` is lost.
    """

    seconds: float
    bytes: int
    began: float
    memory: int = 0
    excess: str = ""
    again: float = 0.0


_lock = threading.Lock()
_running: dict[int, _Work] = {}
_watcher: threading.Thread | None = None


@contextmanager
def bounded(seconds: float, size: int) -> Iterator[None]:
    """Interrupt the block between two instructions of Python, once it has computed or taken too much.

    Args:
        seconds: of this thread's computing; by the clock where a system does not measure that.
        size: bytes by which the process may grow.

    Raises:
        BoundError: it was interrupted.
    """
    thread, work = threading.get_ident(), _Work(seconds, size, _computed(threading.get_ident()))
    with _lock:
        _running[thread] = work
        _ensure_watched()
    try:
        try:
            yield
        finally:
            _leave(thread)
    except _Interrupt:
        _leave(thread)  # the first may have been interrupted
        raise BoundError(work.excess) from None


def _leave(thread: int) -> None:
    """After this no interrupt comes; one may come at any line of it.

    An interrupt is received, not taken back: CPython 3.11 would look for it in every line of every thread from then on.
    """
    while True:
        try:
            with _lock:
                _running.pop(thread, None)
            for _ in range(10):  # one that is under way comes at the end of a round
                pass
            return
        except _Interrupt:
            continue


def _ensure_watched() -> None:
    global _watcher
    if _watcher is None:
        _watcher = threading.Thread(target=_watch, name="corerl-bounds", daemon=True)
        _watcher.start()


def _watch() -> None:
    global _watcher
    idle = 0
    while idle < IDLE:
        time.sleep(LOOK)
        with _lock:
            idle = 0 if _running else idle + 1
            for thread, work in _running.items():
                _look(thread, work)
            if idle == IDLE:
                _watcher = None


def _look(thread: int, work: _Work) -> None:
    memory = _memory()
    work.memory = work.memory or memory
    if _computed(thread) - work.began > work.seconds:
        work.excess = f"it had not ended after {work.seconds:g} s of computing"
    elif memory - work.memory > work.bytes:
        work.excess = f"it takes more than {work.bytes / 2**30:g} GiB of memory"
    if work.excess and time.monotonic() > work.again:
        work.again = time.monotonic() + AGAIN
        _set_interrupt(thread, _Interrupt)


def _set_interrupt(thread: int, kind: type[BaseException] | None) -> None:
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def _computed(thread: int) -> float:
    if hasattr(time, "pthread_getcpuclockid"):
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    return time.monotonic()


def _memory() -> int:
    """Bytes of this process; 0 on a system without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _forget() -> None:
    """A forked process has none of its parent's threads."""
    global _lock, _watcher
    _lock, _watcher = threading.Lock(), None
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
