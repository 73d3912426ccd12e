"""Notices that come once in a process, or at growing distances."""

import functools
from collections.abc import Iterable

from corerl.terminal import Recurring, say

_unanswered = Recurring(say)

MOST_NAMES = 100
"""fields without an effect that are named; clients choose the names"""
_named: set[str] = set()


@functools.lru_cache(maxsize=1024)
def say_once(text: str) -> None:
    """Print a notice, unless it was printed before."""
    say(text)


def name_once(paths: Iterable[str]) -> None:
    """Print the paths of a request's fields that have no effect, unless they were printed before."""
    new = [path for path in dict.fromkeys(each[:80] for each in paths) if path not in _named]
    new = new[: MOST_NAMES - len(_named)]
    _named.update(new)
    if new:
        say(f"requests to the endpoint set fields that have no effect: {', '.join(map(ascii, new))}")


def say_unanswered(what: str, error: BaseException) -> None:
    """Print the 1st, the 2nd, the 4th, … error of a type; its text may differ each time."""
    name = type(error).__name__
    _unanswered(name, f"{what} could not answer a request: {name}: {error}")
