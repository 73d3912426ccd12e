"""The event loop of a run's generation, in the thread that waits for it or in a thread of its own."""

import asyncio
import concurrent.futures
import gc
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from corerl.errors import RunError
from corerl.foreign import SharedLoop, contained
from corerl.terminal.notices import say
from corerl.threads import outside_event_loop

T = TypeVar("T")

ENDING = 90.0
"""seconds in which what still runs in the loop ends once it is cancelled; later it is left behind"""
PART = "a part of the run"

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
        self._loop = SharedLoop()
        self._runner = asyncio.Runner(loop_factory=lambda: self._loop)
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._work, name="corerl-rollouts", daemon=True)
            self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for its result; raise what it raises.

        Raises:
            RuntimeError: the loop is closed.
            RunError: code in the loop cancelled it.
        """
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("the event loop of generation is closed")
        try:
            if self._thread is None:
                with outside_event_loop():
                    return self._runner.run(contained(lambda: coroutine, PART))
            return asyncio.run_coroutine_threadsafe(contained(lambda: coroutine, PART), self._loop).result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise RunError(
                "code in the event loop of the run cancelled the run's own work: an agent may cancel the tasks alone "
                "that it has created"
            ) from None

    def close(self) -> None:
        """Cancel every task, and wait until they have ended."""
        gc.set_threshold(*self._thresholds)
        if self._loop.is_closed():
            return
        if self._thread is None:
            with outside_event_loop():
                self._end()
        else:
            self._loop.call_soon_threadsafe(self._loop.finish)
            self._thread.join(2 * ENDING)

    def _work(self) -> None:
        self._loop.run_forever()
        self._end()

    def _end(self) -> None:
        if left := self._loop.run_until_complete(_end_others()):
            say(f"{left} tasks in the event loop of the run have not ended {ENDING:g} s after their cancellation")
        self._loop.close()


async def _end_others() -> int:
    """Cancel all tasks; returns how many have not ended in their time."""
    tasks = asyncio.all_tasks() - {*filter(None, [asyncio.current_task()])}
    for task in tasks:
        task.cancel()
    left = (await asyncio.wait(tasks, timeout=ENDING))[1] if tasks else ()
    if not left:
        await asyncio.get_running_loop().shutdown_asyncgens()
    return len(left)
