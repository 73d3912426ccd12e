"""The event loop of a run's generation, in the thread that waits for it or in a thread of its own."""

import asyncio
import gc
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from corerl.threads import outside_event_loop

T = TypeVar("T")

ENDING = 90.0
"""seconds in which what still runs in the loop of another thread ends once it is cancelled"""


FULL_COLLECTIONS = 500
"""collections of the middle generation before one of all objects

With Python's 10, all open episodes are searched so often that this takes 40% of the time of thousands of them.
"""


class EventLoop:
    """Runs coroutines; tasks that they start go on during later calls.

    Args:
        background: in a thread of its own, where tasks also go on between calls. Without, the loop stands still between
            calls, and an engine that computes in its event loop computes in the thread of the caller.
    """

    def __init__(self, *, background: bool) -> None:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], max(FULL_COLLECTIONS, self._thresholds[2]))
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._work, name="corerl-rollouts", daemon=True)
            self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for its result; raise what it raises.

        Raises:
            RuntimeError: the loop is closed.
        """
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("the event loop of generation is closed")
        if self._thread is None:
            with outside_event_loop():
                return self._runner.run(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Cancel every task, and wait until they have ended; a thread that does not end is left behind."""
        gc.set_threshold(*self._thresholds)
        if self._thread is None:
            with outside_event_loop():
                self._runner.close()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(ENDING)

    def _work(self) -> None:
        self._loop.run_forever()
        self._runner.close()
