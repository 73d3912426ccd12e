"""Lines for the reader, on standard error; a live progress line stays below them."""

import contextlib
import sys

from corerl.terminal.output import printable


def say(message: str) -> None:
    """Print one notice; what standard error goes to may be full or gone, which is no reason to end a run."""
    with contextlib.suppress(OSError):
        print(printable(message), file=sys.stderr, flush=True)
