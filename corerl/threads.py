"""Blocking calls in threads, each with a deadline."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from corerl.errors import RunError

ALONE = 0.02
"""seconds in which one thread works alone: quick calls are much slower in threads that compete"""

T = TypeVar("T")
R = TypeVar("R")


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Await a blocking function in a thread of its own, which does not hold up the end of the process."""
    import asyncio  # takes a third of the time of `corerl --help`

    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    future.set_running_or_notify_cancel()  # whoever awaits it may be cancelled; the function goes on
    threading.Thread(target=work, name="corerl-call", daemon=True).start()
    return await asyncio.wrap_future(future)


class CallQueue(Generic[T, R]):
    """``call(item)`` for each submitted item, or ``late(item)`` after ``timeout`` seconds.

    Python cannot end a thread: a thread whose call hangs stays behind as a daemon, and another takes its place. Threads
    exist while there is work. A quick call costs a lock and a clock reading more than its own time.

    Args:
        call: raises nothing.
        num_workers: calls that run at a time.
    """

    def __init__(self, call: Callable[[T], R], late: Callable[[T], R], *, num_workers: int, timeout: float) -> None:
        self._call, self._late = call, late
        self._num_workers, self._timeout = num_workers, timeout
        self._waiting: deque[tuple[_Job[T, R], int]] = deque()
        self._running: dict[threading.Thread, tuple[_Job[T, R], int, float]] = {}
        """thread -> its item, and the start of the call; late threads are not here"""
        self._alone_until = 0.0
        self._is_watched = False
        self._changed = threading.Condition()

    def submit(self, items: Sequence[T]) -> "Future[list[R]]":
        """The results, in the order of the items; safe from several threads."""
        job: _Job[T, R] = _Job(items)
        with self._changed:
            if not self._waiting:
                self._alone_until = time.monotonic() + ALONE
            self._waiting.extend((job, index) for index in range(len(items)))
            if self._is_watched:
                self._changed.notify()
            elif items:
                threading.Thread(target=self._watch, name="corerl-calls", daemon=True).start()
                self._is_watched = True
        return job.future

    def close(self) -> None:
        """Begin no further call; futures without results raise RunError."""
        with self._changed:
            self._fail(RunError("the calls were given up: their queue is closed"))
            self._changed.notify()

    def _fail(self, error: RunError) -> None:
        """Give up all open calls; the lock is held."""
        for job in {*(job for job, _ in self._waiting), *(job for job, _, _ in self._running.values())}:
            job.future.set_exception(error)
        self._waiting.clear()
        self._running.clear()

    def _watch(self) -> None:
        """Start threads and keep the deadlines, while there is work."""
        with self._changed:
            try:
                self._keep_deadlines()
            except RuntimeError as error:  # no thread can be started
                self._fail(RunError(f"the calls were given up: {error}"))
            self._is_watched = False

    def _keep_deadlines(self) -> None:
        while self._waiting or self._running:
            now = time.monotonic()
            self._give_up_late(now)
            if self._waiting and now >= self._alone_until:
                for _ in range(min(len(self._waiting), self._num_workers - len(self._running))):
                    self._start_thread()
            elif self._waiting and not self._running:
                self._start_thread()
            if self._running:
                self._changed.wait(self._until_next_look())

    def _start_thread(self) -> None:
        """Start one more worker, its first item taken; the lock is held."""
        thread = threading.Thread(target=self._work, name="corerl-call", daemon=True)
        self._take(thread)
        thread.start()

    def _take(self, thread: threading.Thread) -> None:
        self._running[thread] = (*self._waiting.popleft(), time.monotonic())

    def _work(self) -> None:
        thread = threading.current_thread()
        with self._changed:
            taken = self._running.get(thread)
        while taken is not None:
            job, index, _ = taken
            result = self._call(job.items[index])
            with self._changed:
                if self._running.pop(thread, None) is None:
                    return
                job.settle(index, result)
                if self._waiting:
                    self._take(thread)
                else:
                    self._changed.notify()
                taken = self._running.get(thread)

    def _give_up_late(self, now: float) -> None:
        """Settle every item past its deadline; its thread is replaced."""
        late = [thread for thread, (_, _, start) in self._running.items() if now - start >= self._timeout]
        for thread in late:
            job, index, _ = self._running.pop(thread)
            job.settle(index, self._late(job.items[index]))

    def _until_next_look(self) -> float:
        """Seconds until the longest-running call is late, or a further thread may start."""
        moments = [min(start for _, _, start in self._running.values()) + self._timeout]
        if self._waiting and len(self._running) < self._num_workers:
            moments.append(self._alone_until)
        return max(0.0, min(moments) - time.monotonic())


class _Job(Generic[T, R]):
    """The items of one ``submit``."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items
        self.future: Future[list[R]] = Future()
        self.future.set_running_or_notify_cancel()  # nobody can cancel it: begun calls end
        self._results: dict[int, R] = {}
        if not items:
            self.future.set_result([])

    def settle(self, index: int, result: R) -> None:
        self._results[index] = result
        if len(self._results) == len(self.items):
            self.future.set_result([self._results[each] for each in range(len(self.items))])
