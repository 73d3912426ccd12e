"""Blocking calls in threads."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


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
