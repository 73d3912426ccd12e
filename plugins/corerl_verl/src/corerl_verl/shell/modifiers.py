"""Changes of a variable's value: ``${A##*/}``, ``${A%.sh}``, ``${A/x/y}``, ``${A:2:3}``, ``${A^^}``."""

import fnmatch
import re
from collections.abc import Callable, Sequence

from corerl_verl.shell.tokens import end_of

_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "~~": str.swapcase,
    "^": lambda value: value[:1].upper() + value[1:],
    ",": lambda value: value[:1].lower() + value[1:],
    "~": lambda value: value[:1].swapcase() + value[1:],
}


def modified(value: str, rest: str, word: Callable[[str], str], number: Callable[[str], int | None]) -> str:
    """The value after what follows its name in braces.

    Args:
        rest: as written.
        word, number: of raw text: expanded, and as arithmetic; None: not known.
    """
    if rest[0] in "#%":
        return _trimmed(value, rest, word)
    if rest[0] == "/":
        return _replaced(value, rest[1:], word)
    if rest[0] == ":":
        start, _, length = rest[1:].partition(":")
        begin = number(start) or 0
        return value[begin:][: number(length) if length else None] if begin >= -len(value) else ""
    return next((change(value) for sign, change in _CASES.items() if rest == sign), value)


def portion(entries: Sequence[str], rest: str, number: Callable[[str], int | None]) -> list[str] | None:
    """``${NAME[@]:offset:length}`` of the entries; None: the rest is another change."""
    if not re.match(r":[ \d$(]", rest):
        return None
    start, _, length = rest[1:].partition(":")
    begin = number(start) or 0
    return list(entries[begin:][: number(length) if length else None])


def _trimmed(value: str, rest: str, word: Callable[[str], str]) -> str:
    longest = rest[:2] in ("##", "%%")
    pattern = word(rest[1 + longest :])
    ends = range(len(value) + 1)
    if rest[0] == "#":
        for end in reversed(ends) if longest else ends:
            if fnmatch.fnmatchcase(value[:end], pattern):
                return value[end:]
    else:
        for start in ends if longest else reversed(ends):
            if fnmatch.fnmatchcase(value[start:], pattern):
                return value[:start]
    return value


def _replaced(value: str, rest: str, word: Callable[[str], str]) -> str:
    """The first match, all with ``//``, at the start with ``/#``, at the end with ``/%``."""
    sign = rest[:1] if rest[:1] in ("/", "#", "%") else ""
    old, new = _divided(rest[len(sign) :])
    pattern = fnmatch.translate(word(old)).removeprefix("(?s:").removesuffix(r")\Z")
    whole = {"#": rf"\A(?:{pattern})", "%": rf"(?:{pattern})\Z"}.get(sign, pattern)
    if not old:
        return value
    return re.sub(whole, lambda _: word(new), value, count=0 if sign == "/" else 1, flags=re.DOTALL)


def _divided(rest: str) -> tuple[str, str]:
    """Pattern and replacement: before and behind a slash that is not quoted."""
    at = 0
    while at < len(rest):
        if rest[at] == "/":
            return rest[:at], rest[at + 1 :]
        if rest[at] == "$" and rest[at + 1 : at + 2] in ("{", "("):
            at = end_of(rest, at + 1)
        else:
            at = end_of(rest, at) if rest[at] in "\"'`" else at + 2 if rest[at] == "\\" else at + 1
    return rest, ""
