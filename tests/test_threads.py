"""Threads with deadlines."""

import asyncio
import threading

import pytest

from corerl.errors import RunError
from corerl.threads import CallQueue


def test_calls_outlive_whoever_stops_waiting_for_them_and_the_queue_still_closes() -> None:
    released, ended = threading.Event(), []

    def call(item: str) -> str:
        released.wait(60)
        ended.append(item)
        return item

    queue: CallQueue[str, str] = CallQueue(call, lambda item: "late", num_workers=2, timeout=60)

    async def abandoned(item: str) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(queue.submit([item])), 0.1)

    asyncio.run(abandoned("first"))
    released.set()
    assert queue.submit(["second"]).result(60) == ["second"]  # no thread of the queue died
    assert ended == ["first", "second"]

    released.clear()
    asyncio.run(abandoned("third"))
    open_call = queue.submit(["fourth"])
    queue.close()
    with pytest.raises(RunError, match="given up"):
        open_call.result(60)
    released.set()
