"""Calling what may hang."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from corerl.testing.results import CheckFailed

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T], what: str) -> T:
    """What ``function`` returns or raises.

    It runs in a daemon thread: Python cannot end one that hangs, so that one is left behind.

    Args:
        what: was called, for the message.

    Raises:
        CheckFailed: it takes longer than ``seconds``.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="corerl-testing", daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise
    raise CheckFailed(f"{what} had not ended after {seconds:g} s")
