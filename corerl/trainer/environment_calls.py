"""Calls of an environment's methods: many at a time, each with a deadline."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from corerl.registry.coroutines import blocking
from corerl.threads import in_threads


class Answer(NamedTuple):
    """What a call came to: a value, or one line that says why there is none."""

    value: Any
    seconds: float
    error: str | None = None


def call_all(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, num_workers: int, timeout: float
) -> list[Answer]:
    """Call ``function``, plain or ``async``, with each tuple of arguments; answers in their order.

    Args:
        num_workers: calls under way at a time.
        timeout: seconds for one call, from when it begins.
    """
    plain = blocking(function)

    def call(given: tuple[Any, ...]) -> Answer:
        start = time.perf_counter()
        try:
            value, error = plain(*given), None
        except BaseException as raised:  # in a thread of its own even SystemExit must end as an answer
            value, error = None, f"raised {type(raised).__name__}: {' '.join(str(raised).split())}"
        return Answer(value, time.perf_counter() - start, error)

    def late(_: tuple[Any, ...]) -> Answer:
        return Answer(None, timeout, f"took longer than {timeout:g} s")

    return in_threads(arguments, call, late, num_workers=num_workers, timeout=timeout)
