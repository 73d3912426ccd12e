"""How a check ends."""

from collections.abc import Callable

Run = Callable[[], None]


class CheckFailed(AssertionError):
    """A check does not hold; the message is one sentence that says what is wrong."""


class CheckSkipped(Exception):
    """A check does not apply or cannot run here; the message says why."""


def skipping(reason: str) -> Run:
    """A check that does not apply or cannot run, for ``reason``."""

    def skip() -> None:
        raise CheckSkipped(reason)

    return skip
