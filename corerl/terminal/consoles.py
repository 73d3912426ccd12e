"""The terminal on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from corerl.terminal.output import spoken

_plain = False


@contextmanager
def plain_output() -> Iterator[None]:
    """Print lines alone, on a terminal too."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


class _Spoken(Console):
    """A console whose lines, and the drawings of a live view, end a silence."""

    def print(self, *texts: Any, **options: Any) -> None:
        spoken.set()
        super().print(*texts, **options)


def error_console() -> Console:
    """Standard error, drawn on where :attr:`rich.console.Console.is_terminal`; in colours unless NO_COLOR is set."""
    spoken.set()
    console = _Spoken(stderr=True, highlight=False)
    if _plain or console.is_dumb_terminal:
        return _Spoken(stderr=True, highlight=False, force_terminal=False, no_color=True)
    return console
