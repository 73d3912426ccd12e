"""Numbers as people write them (``-$1,080.50``), found in text and compared exactly, never as floats."""

import functools
import re
from decimal import Decimal

_SIGN_AND_CURRENCY = r"(?:[-+−–]?\\?[$€£¥₹]?|\\?[$€£¥₹][-−–])"
_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_WHOLE = re.compile(f"{_SIGN_AND_CURRENCY}{_DIGITS}\\.?")
_ANOTHER = (  # "42 or 43", "42, 43", "42 (or 43)", "3 hours and 5 minutes"; bounded, because there may be many spaces
    r"[ \t*]{0,4}(?:[,;][ \t]{0,4}[-−–]?\\?[$€£¥₹]?[0-9]"
    r"|(?:(?:\\text\{)?[ \t]{0,4}[A-Za-z]{1,20}[ \t]{0,4}|[,(])?[ \t]{0,4}(?:\\text\{[ \t(,]{0,4})?"
    r"(?:or\b[^\n0-9]{0,20}|(?:and|to)\b[ \t\\$€£¥₹}({−–-]{0,6})[0-9])"
)
_LEADING = re.compile(  # not part of a longer number, a word or a formula, and not the first of several
    rf"[\s*]*({_SIGN_AND_CURRENCY}{_DIGITS})"
    r"(?![0-9A-Za-z_]|[.,][0-9]|[ \t]{0,4}[-−–+*/^=×÷±~≈][ \t]{0,4}\\?[$€£¥₹]?[0-9(]"
    rf"|[ \t]{{0,4}}\\(?:pi|sqrt|d?frac|cdot|times|div|pm|approx)|{_ANOTHER}"
    r"|[ \t]{0,4}(?:\\text\{)?[ \t]{0,4}(?:hundred|thousand|million|billion|trillion|dozen|squared|cubed)\b)"
)
_ANYWHERE = re.compile(rf"(?<![\w.)^])(?<!\^\{{){_SIGN_AND_CURRENCY}{_DIGITS}(?![0-9]|[eE][0-9])")

_SIGNS_ALONE = str.maketrans({**dict.fromkeys("\\$€£¥₹,", ""), "−": "-", "–": "-"})
LONGEST_CACHED = 40
"""characters; the text of a response has any length, and must not stay in memory"""


def leading_number(text: str) -> str | None:
    """The number at the start of ``text``, after spaces and asterisks; None if there is none.

    >>> leading_number(" **$1,080**, in all"), leading_number("17 + 25")
    ('$1,080', None)
    """
    match = _LEADING.match(text)
    return match.group(1) if match else None


def last_number(text: str) -> str | None:
    """The last number in ``text``, or None; the minus of ``5-3`` is an operator, not a sign.

    >>> last_number("so 10-3 = 7."), last_number("at -5 degrees")
    ('7', '-5')
    """
    found = _ANYWHERE.findall(text)
    return found[-1] if found else None


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
