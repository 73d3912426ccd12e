"""An event loop in a thread of its own, for a library that keeps servers in it."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
END_SECONDS = 60.0


class LoopThread:
    """Runs coroutines for another event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result; a cancellation reaches it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last``, then end the loop; a thread that does not end is left behind."""
        try:
            asyncio.run_coroutine_threadsafe(last, self._loop).result(END_SECONDS)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_SECONDS)
            if not self._thread.is_alive():
                self._loop.close()
