"""Lines for the reader, on standard error; a live progress line stays below them."""

import contextlib
import sys

from corerl.terminal.output import printable


def say(message: str) -> None:
    """Print one notice; a run goes on if standard error is full or gone."""
    with contextlib.suppress(OSError):
        print(printable(message), file=sys.stderr, flush=True)
