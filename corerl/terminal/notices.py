"""Lines for the reader, on standard error; a live progress line stays below them."""

import contextlib
import sys
import threading
import time

from corerl.terminal.output import printable, spoken

SILENCE = 4.0
"""longest seconds without a line, in the first minute"""
MINUTE = 60.0


def say(message: str) -> None:
    """Print one notice; a run goes on if standard error is full or gone."""
    spoken.set()
    _print(message)


def show_life() -> None:
    """Print ``working (4 s)`` every 4 seconds until the program prints something else, for a minute at most."""

    def show() -> None:
        began = time.monotonic()
        while not spoken.wait(SILENCE) and (seconds := time.monotonic() - began) < MINUTE:
            _print(f"working ({seconds:.0f} s)")

    threading.Thread(target=show, name="corerl-life", daemon=True).start()


def _print(message: str) -> None:
    with contextlib.suppress(OSError):
        print(printable(message), file=sys.stderr, flush=True)
