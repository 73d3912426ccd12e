"""Expansion of braces: ``{a,b}``, ``{1..3}``, ``{01..09..2}``, ``{a..c}``."""

import re

from corerl_verl.shell.tokens import end_of

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?|([A-Za-z])\.\.([A-Za-z])")
_MOST = 1000
"""words of one word; a word with more is unchanged"""


def braced(raw: str) -> list[str]:
    """The raw words that a raw word stands for.

    >>> braced("a{1..3}.b"), braced("{x,y{1,2}}"), braced("'{a,b}'"), braced("${A}"), braced("{a}")
    (['a1.b', 'a2.b', 'a3.b'], ['x', 'y1', 'y2'], ["'{a,b}'"], ['${A}'], ['{a}'])
    """
    return _expanded(raw, 0) or [raw]


def _expanded(raw: str, start: int) -> list[str]:
    """No words: there are more than _MOST."""
    at = start
    while at < len(raw):
        if raw[at] == "{" and (end := _end(raw, at)) and (parts := _parts(raw[at + 1 : end])):
            tails = _expanded(raw[end + 1 :], 0)
            heads = [each for part in parts for each in _expanded(part, 0)]
            few = len(heads) * len(tails) <= _MOST
            return [f"{raw[:at]}{head}{tail}" for head in heads for tail in tails] if few else []
        at = _next(raw, at)
    return [raw]


def _next(raw: str, at: int) -> int:
    """The place behind a character, an escaped one, a quoted part, or an expansion."""
    if raw[at] == "\\":
        return at + 2
    if raw[at] == "$" and raw[at + 1 : at + 2] in ("{", "("):
        return end_of(raw, at + 1)
    return end_of(raw, at) if raw[at] in "\"'`" else at + 1


def _end(raw: str, start: int) -> int | None:
    at, depth = start, 0
    while at < len(raw):
        depth += {"{": 1, "}": -1}.get(raw[at], 0)
        if not depth:
            return at
        at = _next(raw, at)
    return None


def _parts(inside: str) -> list[str]:
    """Those between commas, or of a range; none: the brace is text."""
    if match := _RANGE.fullmatch(inside):
        return _range(*match.groups())
    parts, start, at = [], 0, 0
    while at < len(inside):
        if inside[at] == ",":
            parts.append(inside[start:at])
            start = at + 1
        end = _end(inside, at) if inside[at] == "{" else None
        at = end + 1 if end else _next(inside, at)
    return [*parts, inside[start:]] if parts else []


def _range(first: str | None, last: str | None, step: str | None, start: str | None, end: str | None) -> list[str]:
    if start and end:
        low, high = ord(start), ord(end)
        return [chr(each) for each in range(low, high + (1 if high >= low else -1), 1 if high >= low else -1)]
    low, high, by = int(first or 0), int(last or 0), abs(int(step or 1)) or 1
    numbers = range(low, high + 1, by) if high >= low else range(low, high - 1, -by)
    padded = any(re.match(r"-?0\d", each or "") for each in (first, last))
    width = max(len(first or ""), len(last or "")) if padded else 0
    return [f"{each:0{width}d}" if width else str(each) for each in numbers] if len(numbers) <= _MOST else []
