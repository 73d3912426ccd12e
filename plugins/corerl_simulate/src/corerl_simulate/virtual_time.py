"""An event loop whose clock jumps to the next timer once nothing is ready: hours of waiting take no time."""

import asyncio
from asyncio.base_events import BaseEventLoop
from collections.abc import Coroutine
from typing import Any, TypeVar

from corerl.errors import RunError

T = TypeVar("T")

MOST = 24 * 3600.0
"""virtual seconds that one call of :meth:`VirtualTime.run` may take"""


class StandstillError(RunError):
    """Nothing can happen any more: no task is ready and no timer is set."""


class _Jumps:
    """A selector of no files, whose wait moves the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.most = MOST

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StandstillError(
                f"the simulation stands still at virtual second {self.now:.3f}: tasks wait, and neither a timer nor an "
                "engine will wake them"
            )
        self.now += timeout
        if self.now > self.most:
            raise RunError(f"the simulation did not come to its next result by virtual second {self.most:.0f}")
        return []


class VirtualLoop(BaseEventLoop):
    """An asyncio event loop without files, signals and threads of its own. ``time()`` is virtual, from 0."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Jumps()

    def time(self) -> float:
        """Virtual seconds."""
        return self._selector.now

    def limit(self, seconds: float) -> None:
        """The clock may move so far from now on; beyond, RunError."""
        self._selector.most = self._selector.now + seconds

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no files."""

    def _write_to_self(self) -> None:
        """Nobody waits in ``select``: other threads need not wake it."""


class VirtualTime:
    """Runs coroutines in virtual time, as :class:`corerl.rollout.event_loop.EventLoop` does in real time.

    Tasks go on during later calls only, which is all the time: nothing else moves the clock.
    """

    def __init__(self) -> None:
        self.loop = VirtualLoop()

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.time()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for its result; raise what it raises.

        Raises:
            StandstillError: nothing can happen any more.
            RunError: it takes more than ``MOST`` virtual seconds.
        """
        self.loop.limit(MOST)
        return self.loop.run_until_complete(coroutine)

    def wait(self, seconds: float) -> None:
        """Let all tasks go on for so many virtual seconds."""
        if seconds > 0:
            self.run(asyncio.sleep(seconds))

    def close(self) -> None:
        """Cancel every task."""
        if self.loop.is_closed():
            return
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run(_ended(tasks))
        self.loop.close()


async def _ended(tasks: "set[asyncio.Task[Any]]") -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
