"""The results of checks."""

from collections.abc import Callable

Run = Callable[[], None]


class CheckFailed(AssertionError):
    """A check fails; the message is one sentence about the error."""


class CheckSkipped(Exception):
    """A check does not apply or cannot run here; the message is the reason."""


def skipping(reason: str) -> Run:
    """A check that does not apply or cannot run, for ``reason``."""

    def skip() -> None:
        raise CheckSkipped(reason)

    return skip
