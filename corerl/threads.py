"""Blocking calls in threads, and in a thread whose event loop runs."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
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


@contextmanager
def outside_event_loop() -> Iterator[None]:
    """Let other event loops run in this thread; the one that runs, such as that of a notebook's cell, waits.

    asyncio has the functions that this takes for other implementations of loops and tasks.
    """
    asyncio = sys.modules.get("asyncio")  # not imported for a program without a loop
    loop = asyncio._get_running_loop() if asyncio else None
    if asyncio is None or loop is None:
        yield
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio._enter_task(loop, task)
