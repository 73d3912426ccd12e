"""Work in batches, with a progress bar on a terminal."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.progress import track

from corerl.terminal.consoles import error_console

T = TypeVar("T")

_BATCH_SIZE = 512
_LARGE = 2000
"""items from which on a bar is drawn"""


def batches(items: Sequence[T], description: str) -> Iterator[Sequence[T]]:
    """Slices of at most 512 items; the bar goes to stderr, for large sets on a terminal only."""
    console = error_console()
    hidden = len(items) < _LARGE or not console.is_terminal
    starts = range(0, len(items), _BATCH_SIZE)
    for start in track(starts, description, console=console, transient=True, disable=hidden):
        yield items[start : start + _BATCH_SIZE]
