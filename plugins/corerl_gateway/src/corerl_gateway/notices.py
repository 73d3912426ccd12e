"""Notices that come once in a process, or at growing distances."""

import functools

from corerl.terminal import Recurring, say

_unanswered = Recurring(say)


@functools.lru_cache(maxsize=1024)
def say_once(text: str) -> None:
    """Print a notice, unless it was printed before."""
    say(text)


def say_unanswered(what: str, error: BaseException) -> None:
    """Print the 1st, the 2nd, the 4th, … error of a type; its text may differ each time."""
    name = type(error).__name__
    _unanswered(name, f"{what} could not answer a request: {name}: {error}")
