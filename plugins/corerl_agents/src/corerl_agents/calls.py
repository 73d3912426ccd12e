"""Calls of methods of environments and of tools: many at a time, each with a deadline."""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from corerl.errors import described
from corerl.registry import blocking
from corerl_rewards.threads import CallQueue


class Answer(NamedTuple):
    """The result of a call: a value, or one line with the reason why there is none."""

    value: Any
    seconds: float
    error: str | None = None


class Calls:
    """Calls functions, plain or ``async``, in threads.

    Args:
        num_workers: calls under way at a time.
        timeout: seconds for one call, from its beginning.
    """

    def __init__(self, *, num_workers: int, timeout: float) -> None:
        self._timeout = timeout
        self._queue = CallQueue(_call, self._late, num_workers=num_workers, timeout=timeout)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Answer:
        """The function's answer; an exception of it is an answer with an error."""
        [answer] = await asyncio.wrap_future(self._submit(function, arguments))
        return answer

    def wait(self, function: Callable[..., Any], *arguments: Any) -> Answer:
        """As :meth:`call`, outside of an event loop."""
        [answer] = self._submit(function, arguments).result()
        return answer

    def close(self) -> None:
        """Begin no further call."""
        self._queue.close()

    def _submit(
        self, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> "concurrent.futures.Future[list[Answer]]":
        return self._queue.submit([(function, arguments)])

    def _late(self, _: "_Call") -> Answer:
        return Answer(None, self._timeout, f"took longer than {self._timeout:g} s")


_Call = tuple[Callable[..., Any], tuple[Any, ...]]


def _call(call: _Call) -> Answer:
    function, arguments = call
    start = time.perf_counter()
    try:
        value, error = blocking(function)(*arguments), None
    except BaseException as raised:  # in a thread of its own even SystemExit must end as an answer
        value, error = None, f"raised {described(raised)}"
    return Answer(value, time.perf_counter() - start, error)


def shorten(text: str, most: int | None) -> str:
    """``text`` without its middle, if it is longer than ``most`` characters.

    >>> shorten("0123456789", 7)
    '012…789'
    """
    if most is None or len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
