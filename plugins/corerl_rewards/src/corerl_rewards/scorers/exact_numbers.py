"""Numbers as people write them (``-$1,080.50``), found in text and read exactly, never as floats."""

import functools
import re
from decimal import Decimal

_SIGN_AND_CURRENCY = r"(?:[-+−–]?\\?[$€£¥₹]?|\\?[$€£¥₹][-−–])"
_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_WHOLE = re.compile(f"{_SIGN_AND_CURRENCY}{_DIGITS}\\.?")
_ANYWHERE = re.compile(rf"(?<![A-Za-z0-9_.)^])(?<!\^\{{){_SIGN_AND_CURRENCY}{_DIGITS}(?![0-9]|[eE][0-9])")

_SIGNS_ALONE = str.maketrans({**dict.fromkeys("\\$€£¥₹,", ""), "−": "-", "–": "-"})
LONGEST_CACHED = 40
"""characters; the text of a response has any length, and must not stay in memory"""


def number_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each number in a text; the minus of ``5-3`` is an operator, not a sign.

    >>> number_spans("10-3 = 7."), number_spans("at -5 degrees")
    ([(0, 2), (3, 4), (7, 8)], [(3, 5)])
    """
    return [match.span() for match in _ANYWHERE.finditer(text)]


def is_number(text: str) -> bool:
    """Whether ``text`` is exactly one number that :func:`exact` can read."""
    return _WHOLE.fullmatch(text) is not None


def exact(text: str) -> Decimal:
    """The value of a number, exactly.

    >>> exact("-$1,080.50") == exact("-1080.5")
    True

    Raises:
        ValueError: ``text`` is not one number.
    """
    return _cached(text) if len(text) <= LONGEST_CACHED else _exact(text)


def _exact(text: str) -> Decimal:
    text = text.strip()
    if not is_number(text):
        raise ValueError(f"{text[:60]!r} is not a number")
    return Decimal(text.translate(_SIGNS_ALONE).removesuffix("."))


_cached = functools.lru_cache(maxsize=4096)(_exact)
