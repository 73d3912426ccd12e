"""Calls that block, several at a time in threads, each with a deadline that it cannot overrun."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

ALONE = 0.02
"""seconds that the first thread works alone: threads in each other's way make quick calls several times slower"""

T = TypeVar("T")
R = TypeVar("R")


def in_threads(
    items: Sequence[T], call: Callable[[T], R], late: Callable[[T], R], *, num_workers: int, timeout: float
) -> list[R]:
    """``call(item)`` for each item, in their order; ``late(item)`` where that takes longer than ``timeout`` seconds.

    Python cannot end a thread: one whose call hangs is left behind as a daemon, which holds up neither the others nor
    the end of the process, and another takes its place.

    Args:
        call: raises nothing.
        num_workers: calls that run at a time.
    """
    return _Batch(items, call, late, num_workers, timeout).run() if items else []


class _Batch(Generic[T, R]):
    """Threads that each take the next item until none is left.

    Nothing is scheduled for each item, so a quick call costs a lock and a clock reading more than its own time.
    """

    def __init__(
        self, items: Sequence[T], call: Callable[[T], R], late: Callable[[T], R], num_workers: int, timeout: float
    ) -> None:
        self._items = items
        self._call = call
        self._late = late
        self._num_workers = num_workers
        self._timeout = timeout
        self._results: dict[int, R] = {}
        self._next = 0
        self._running: dict[threading.Thread, tuple[int, float]] = {}
        """thread -> the item it has, and since when; one that is not here was given up"""
        self._changed = threading.Condition()

    def run(self) -> list[R]:
        with self._changed:
            self._start_thread()
            try:
                self._changed.wait(min(ALONE, self._until_deadline()))
                for _ in range(self._num_workers - 1):
                    self._start_thread()
                while self._running:
                    self._give_up_late()
                    self._changed.wait(self._until_deadline())
            finally:
                self._running.clear()  # after an interrupt, threads end with the item they have
        return [self._results[index] for index in range(len(self._items))]

    def _start_thread(self) -> None:
        """Start one more worker, its first item taken; the lock is held."""
        if self._next < len(self._items):
            thread = threading.Thread(target=self._work, args=(self._next,), name="corerl-call", daemon=True)
            self._take(thread)
            thread.start()

    def _take(self, thread: threading.Thread) -> int:
        index, self._next = self._next, self._next + 1
        self._running[thread] = (index, time.monotonic())
        return index

    def _work(self, index: int) -> None:
        thread = threading.current_thread()
        while True:
            result = self._call(self._items[index])
            with self._changed:
                if thread not in self._running:
                    return
                self._results[index] = result
                if self._next == len(self._items):
                    del self._running[thread]
                    self._changed.notify()
                    return
                index = self._take(thread)

    def _give_up_late(self) -> None:
        """Settle every item past its deadline; a new thread takes the place of its worker."""
        now = time.monotonic()
        late = [thread for thread, (_, start) in self._running.items() if now - start >= self._timeout]
        for thread in late:
            index, _ = self._running.pop(thread)
            self._results[index] = self._late(self._items[index])
            self._start_thread()

    def _until_deadline(self) -> float:
        """Seconds until the longest-running call is late; 0 when nothing runs any more."""
        starts = [start for _, start in self._running.values()]
        return max(0.0, min(starts) + self._timeout - time.monotonic()) if starts else 0.0
