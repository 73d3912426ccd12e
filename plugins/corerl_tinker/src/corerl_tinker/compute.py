"""The thread that computes: calls in lanes, one at a time, a lane's in their order, the lanes in turn."""

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, TypeVar

from corerl.foreign import harmless
from corerl_tinker.errors import UserError

T = TypeVar("T")

_Call = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class Compute:
    """Runs calls in a thread of its own; an event loop awaits their results."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[_Call]] = OrderedDict()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="corerl-tinker-compute", daemon=True)
        self._thread.start()

    def submit(self, lane: str, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a call after those that its lane has."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._changed:
            if self._is_closed:
                future.set_exception(UserError("the server is stopping"))
            else:
                self._lanes.setdefault(lane, deque()).append((call, future, loop))
                self._changed.notify()
        return future

    def drop(self, lane: str, why: str) -> None:
        """Fail the calls of a lane that have not begun."""
        with self._changed:
            dropped = self._lanes.pop(lane, deque())
        for _, future, _ in dropped:
            if not future.done():
                future.set_exception(UserError(why))

    def close(self, seconds: float) -> bool:
        """Begin no further call, and wait for the one under way; returns whether it ended in time."""
        with self._changed:
            self._is_closed = True
            lanes = list(self._lanes)
            self._changed.notify()
        for lane in lanes:
            self.drop(lane, "the server is stopping")
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            call, future, loop = taken
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, future, result, error)
            del taken, call, future, result, error

    def _next(self) -> _Call | None:
        with self._changed:
            while not self._lanes and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            lane, calls = next(iter(self._lanes.items()))
            taken = calls.popleft()
            self._lanes.move_to_end(lane)
            if not calls:
                del self._lanes[lane]
            return taken


def _finish(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(harmless(error, "a call of the trainer"))
    else:
        future.set_result(result)
