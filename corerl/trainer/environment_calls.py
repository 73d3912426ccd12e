"""Calls of an environment's methods: many at a time, each with a deadline."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from corerl.errors import DeadlineError

GRACE = 10.0
"""seconds beyond the deadlines of all calls, after which the event loop itself must hang"""


class Answer(NamedTuple):
    """What a call came to: a value, or one line that says why there is none."""

    value: Any
    seconds: float
    error: str | None = None


class EnvironmentCalls:
    """Runs calls in an event loop of its own, which lives as long as the run.

    A coroutine runs in the loop; a plain function in a daemon thread of its own. Python cannot end a thread: one that
    is late is left behind, which holds up neither the batch nor the end of the process.

    Args:
        timeout: seconds for one call, from when it begins.
        num_workers: calls under way at a time.
    """

    def __init__(self, timeout: float, num_workers: int) -> None:
        self._timeout, self._num_workers = timeout, num_workers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="corerl-environment", daemon=True)
        self._thread.start()

    def all(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Answer]:
        """Call ``function`` with each tuple of arguments; answers in their order.

        Raises:
            DeadlineError: a coroutine blocks the event loop.
        """
        future = asyncio.run_coroutine_threadsafe(self._all(function, arguments), self._loop)
        rounds = -(-len(arguments) // self._num_workers)
        try:
            return future.result(rounds * self._timeout + GRACE)
        except TimeoutError:
            future.cancel()
            raise DeadlineError(
                f"the environment did not answer {len(arguments)} calls within {rounds} × "
                f"rollout.multi_turn.tool_timeout = {self._timeout:g} s: a coroutine of it blocks the event loop"
            ) from None

    def close(self) -> None:
        """End the loop; a call that hangs is left behind."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()

    async def _all(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Answer]:
        workers = asyncio.Semaphore(self._num_workers)
        is_async = inspect.iscoroutinefunction(function)

        async def one(given: tuple[Any, ...]) -> Answer:
            async with workers:
                start = time.perf_counter()
                work = asyncio.ensure_future(function(*given)) if is_async else self._in_thread(function, given)
                done, _ = await asyncio.wait([work], timeout=self._timeout)
                seconds = time.perf_counter() - start
                if not done:
                    work.cancel()
                    return Answer(None, seconds, f"took longer than {self._timeout:g} s")
                if work.cancelled():
                    return Answer(None, seconds, "was cancelled")
                if (error := work.exception()) is not None:
                    return Answer(None, seconds, f"raised {type(error).__name__}: {' '.join(str(error).split())}")
                return Answer(work.result(), seconds)

        return await asyncio.gather(*map(one, arguments))

    def _in_thread(self, function: Callable[..., Any], given: tuple[Any, ...]) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result(value) if error is None else future.set_exception(error)

        def run() -> None:
            value, error = None, None
            try:
                value = function(*given)
            except BaseException as raised:  # in a thread of its own even SystemExit must end as an answer
                error = RuntimeError(str(raised)) if isinstance(raised, StopIteration) else raised
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(settle, value, error)

        threading.Thread(target=run, name="corerl-environment-call", daemon=True).start()
        return future
