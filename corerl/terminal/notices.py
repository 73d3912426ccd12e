"""Lines for the reader, on standard error; a live progress line stays below them."""

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from corerl.terminal.output import printable, spoken

SILENCE = 4.0
"""longest seconds without a line, in the first minute"""
MINUTE = 60.0
MOST_KINDS = 32
"""kinds of recurring notices that are told apart: a kind may hold a text from outside"""

_parts: list[tuple[str, bool]] = []
"""names of the parts that run now, the latest last, and whether each usually takes long"""


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


@contextlib.contextmanager
def part(name: str, is_long: bool = False) -> Iterator[None]:
    """Name the part of the program that runs, for :func:`show_life`.

    Args:
        is_long: it usually takes long, and is named after a minute only.
    """
    _parts.append((name, is_long))
    try:
        yield
    finally:
        _parts.remove((name, is_long))


def show_life() -> Callable[[], None]:
    """Print ``working (4 s): importing torch`` after 4 seconds without a line, and again; after a minute less often.

    Before the first line of the program any part is named, for a minute at most; later those of :func:`part` alone,
    and a part that usually takes long, such as one of a step, after 60 seconds without a line, after 120, 240, ….

    Returns:
        A function that ends it.
    """
    is_over = threading.Event()

    def show() -> None:
        began, pause, is_first = time.monotonic(), SILENCE, True
        while not is_over.is_set():
            if spoken.wait(pause):
                spoken.clear()
                began, pause, is_first = time.monotonic(), SILENCE, False
                continue
            seconds = time.monotonic() - began
            name, is_long = _parts[-1] if _parts else ("", False)
            is_late = seconds >= MINUTE
            if (is_late or not is_long) if name else (is_first and not is_late):
                _print(f"working ({seconds:.0f} s): {name or _running()}")
            pause = SILENCE if seconds < MINUTE else seconds

    def end() -> None:
        is_over.set()
        spoken.set()

    threading.Thread(target=show, name="corerl-life", daemon=True).start()
    return end


def _running() -> str:
    """The import that the main thread waits for, or the module of CoreRL or of a plugin that it runs."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    module, imported = "", ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        module = module or (name if name.startswith("corerl") else "")
        if frame.f_code.co_name == "_find_and_load" and not (wanted := frame.f_locals["name"]).startswith("corerl"):
            imported = wanted.partition(".")[0]
        frame = frame.f_back
    return f"importing {imported}" if imported else module or "starting"


def _print(message: str) -> None:
    with contextlib.suppress(OSError):
        print(printable(message), file=sys.stderr, flush=True)
