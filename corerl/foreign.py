"""Code of others in event loops that many share: its exits and its cancellations end nothing but itself."""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from corerl.errors import ExitError, Stopped, described
from corerl.terminal.notices import say
from corerl.threads import started

T = TypeVar("T")

ENDING = 30.0
"""seconds in which cancelled code ends; later it is left behind"""


async def contained(call: Callable[[], Awaitable[T]], what: str) -> T:
    """Call foreign code in a task of its own, and await it. A cancellation of the caller cancels it.

    Args:
        what: its name in errors, such as ``the agent``.

    Raises:
        ExitError: it raised SystemExit, KeyboardInterrupt, GeneratorExit, or a CancelledError of its own making.
    """
    task = asyncio.create_task(_called(call, what))
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        await _end(task, what)
        raise
    if task.cancelled():
        raise ExitError(f"{what} raised CancelledError: it cancelled its own task, or awaited one that was cancelled")
    if isinstance(error := task.exception(), GeneratorExit):
        raise harmless(error, what) from error
    return task.result()


async def _called(call: Callable[[], Awaitable[T]], what: str) -> T:
    try:
        return await call()
    except (asyncio.CancelledError, GeneratorExit):  # also from asyncio, which cancels and closes coroutines
        raise
    except BaseException as error:
        if (known := harmless(error, what)) is error:
            raise
        raise known from error


def harmless(error: BaseException, what: str) -> BaseException:
    """An error of foreign code, as one that ends neither an event loop nor a process; Stopped stays."""
    if isinstance(error, BaseExceptionGroup) and (stopped := error.subgroup(Stopped)) is not None:
        return _first(stopped)
    if isinstance(error, StopIteration) or not isinstance(error, Exception | Stopped):
        return ExitError(f"{what} raised {described(error)}")
    return error


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


async def _end(task: "asyncio.Task[Any]", what: str) -> None:
    """Cancel a task, and give it its time."""
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else reads its error
    task.cancel()
    await asyncio.wait({task}, timeout=ENDING)
    if not task.done():
        say(f"{what} has not ended {ENDING:g} s after its cancellation: it is left behind")


class _Threads(ThreadPoolExecutor):
    """A thread for each call; those of a pool would hold up the end of the process, and thousands of episodes."""

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        return started(functools.partial(call, *args, **kwargs))


class SharedLoop(asyncio.SelectorEventLoop):
    """An event loop that foreign code neither ends by SystemExit or KeyboardInterrupt in a task of its own, nor stops.

    A KeyboardInterrupt is Ctrl-C once the task of :meth:`run_until_complete` is cancelled, as the first Ctrl-C does.
    """

    _main: "asyncio.Future[Any] | None" = None
    _is_finished = _is_told = False

    def __init__(self) -> None:
        super().__init__()
        self.set_default_executor(_Threads())

    def run_until_complete(self, future: Any) -> Any:
        self._main = asyncio.ensure_future(future, loop=self)
        return super().run_until_complete(self._main)

    def run_forever(self) -> None:
        self._is_finished = False
        while True:
            try:
                super().run_forever()
                return
            except (SystemExit, KeyboardInterrupt) as error:
                if isinstance(error, KeyboardInterrupt) and self._is_interrupted():
                    raise
                self._tell(f"raised {described(error)} in a task or a callback of its own")
                if self._is_finished:
                    return

    def stop(self) -> None:
        """Ignored, but at the end of :meth:`run_until_complete`."""
        if self._main is not None and self._main.done():
            self.finish()
        else:
            self._tell("stopped the event loop")

    def finish(self) -> None:
        """End :meth:`run_forever`."""
        self._is_finished = True
        super().stop()

    def _is_interrupted(self) -> bool:
        return isinstance(self._main, asyncio.Task) and self._main.cancelling() > 0

    def _tell(self, what: str) -> None:
        if not self._is_told:
            self._is_told = True
            say(f"code of an agent, a tool or an engine {what}: the loop goes on")


class LoopThread:
    """A :class:`SharedLoop` in a daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop = SharedLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Awaitable[T]], what: str) -> "Future[T]":
        """Call foreign code there, as :func:`contained`; from any thread."""
        return asyncio.run_coroutine_threadsafe(contained(call, what), self.loop)

    async def call(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """As :meth:`submit`, for another event loop; a cancellation reaches the code."""
        return await asyncio.wrap_future(self.submit(call, what))

    def close(self, last: Coroutine[Any, Any, None], seconds: float) -> None:
        """Run ``last``, and end the loop; a thread that does not end is left behind.

        Raises:
            TimeoutError: ``last`` took longer than ``seconds``.
        """
        try:
            asyncio.run_coroutine_threadsafe(last, self.loop).result(seconds)
        finally:
            self.loop.call_soon_threadsafe(self.loop.finish)
            self._thread.join(seconds)
            if not self._thread.is_alive():
                self.loop.close()
