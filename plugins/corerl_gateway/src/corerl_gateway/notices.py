"""Notices that come once in a process."""

import functools

from corerl.terminal import say


@functools.lru_cache(maxsize=1024)
def say_once(text: str) -> None:
    """Print a notice, unless it was printed before."""
    say(text)
