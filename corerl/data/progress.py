"""Work in batches, with a progress bar where somebody is looking."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.progress import Progress

from corerl.terminal.consoles import error_console

T = TypeVar("T")

_BATCH_SIZE = 512
_LARGE = 2000
"""from so many items on a bar is drawn"""


def batches(items: Sequence[T], description: str) -> Iterator[Sequence[T]]:
    """Slices of at most 512 items; the bar goes to stderr, for large sets on a terminal only."""
    console = error_console()
    hidden = len(items) < _LARGE or not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(description, total=len(items))
        for start in range(0, len(items), _BATCH_SIZE):
            batch = items[start : start + _BATCH_SIZE]
            yield batch
            progress.advance(task, len(batch))
