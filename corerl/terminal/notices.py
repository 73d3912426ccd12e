"""Lines for the reader, on standard error; a live progress line stays below them."""

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from corerl.terminal.output import printable, spoken

SILENCE = 4.0
"""longest seconds without a line, in the first minute"""
MINUTE = 60.0
MOST_KINDS = 32
"""kinds of recurring notices that are told apart: a kind may hold a text from outside"""


def say(message: str) -> None:
    """Print one notice; a run goes on if standard error is full or gone."""
    spoken.set()
    _print(message)


class Recurring:
    """Notices that may recur at every step: of each kind the 1st, the 2nd, the 4th, the 8th … is printed.

    Args:
        say: prints a notice.
    """

    def __init__(self, say: Callable[[str], None] = say) -> None:
        self._say, self._counts = say, Counter[str]()

    def __call__(self, kind: str, message: str) -> None:
        """Print ``message`` if the notice is due."""
        if count := self.due(kind):
            more = f" ({count} such notices so far; the next is printed at {2 * count})" if count > 1 else ""
            self._say(message + more)

    def due(self, kind: str) -> int:
        """Count a notice; its number if it is due, else 0. The kinds after the first 32 are counted together."""
        if kind not in self._counts and len(self._counts) >= MOST_KINDS:
            kind = ""
        self._counts[kind] += 1
        count = self._counts[kind]
        return count if count.bit_count() == 1 else 0


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
