"""Integers of many digits, which Python refuses to read and to print unless asked to."""

import contextlib
import sys
import threading
from collections.abc import Iterator

LONGEST = 100_000
"""digits; more take seconds"""
_DIGITS = 4000
"""digits that Python reads without a change of its limit"""
_lock = threading.Lock()
_within: list[int] = []
"""the limit before the first of the threads within :func:`any_integer`, once for each"""


def integer(text: str) -> int:
    """The integer that a text is, for ``parse_int`` of json.

    Raises:
        ValueError: it has more than :data:`LONGEST` digits.
    """
    if len(text) > LONGEST:
        raise ValueError(f"an integer of more than {LONGEST} digits")
    if len(text) <= _DIGITS:
        return int(text)
    half = len(text) // 2
    tail = integer(text[half:])
    head: int = integer(text[:half]) * 10 ** (len(text) - half)
    return head - tail if text.startswith("-") else head + tail


@contextlib.contextmanager
def any_integer() -> Iterator[None]:
    """Within, Python reads and prints integers of any length; the limit returns with the last thread."""
    with _lock:
        _within.append(_within[0] if _within else sys.get_int_max_str_digits())
        sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        with _lock:
            before = _within.pop()
            if not _within:
                sys.set_int_max_str_digits(before)
