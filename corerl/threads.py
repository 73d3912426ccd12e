"""Blocking calls in threads, which do not hold up the end of the process."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from corerl.errors import described

T = TypeVar("T")


def started(call: Callable[[], T]) -> "Future[T]":
    """Call a blocking function in a thread of its own."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except StopIteration as error:  # which no event loop can raise
            future.set_exception(RuntimeError(described(error)))
        except BaseException as error:
            future.set_exception(error)

    future.set_running_or_notify_cancel()  # whoever awaits it may be cancelled; the function goes on
    threading.Thread(target=work, name="corerl-call", daemon=True).start()
    return future


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Await a blocking function in a thread of its own."""
    import asyncio  # takes a third of the time of `corerl --help`

    return await asyncio.wrap_future(started(lambda: call(*args)))
