"""Lines for the reader, on standard error; a live progress line stays below them."""

import sys


def say(message: str) -> None:
    """Print one notice."""
    print(message, file=sys.stderr, flush=True)
