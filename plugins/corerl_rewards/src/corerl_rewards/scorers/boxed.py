r"""``\boxed{…}``: search in a response, and normalisation."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BARE = re.compile(r"[^\s$]+")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is no brace


def boxes(text: str) -> list[str | None]:
    r"""The content of each ``\boxed`` and ``\fbox`` of ``text``, in order; None for one whose braces never close.

    >>> boxes(r"\boxed{\frac{1}{2}} or $\boxed 5$, \fbox{6")
    ['\\frac{1}{2}', '5', None]
    """
    return [_content(text, match.end()) for match in _BOX.finditer(text)]


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed`` or ``\fbox`` of ``text``; None without one, or if its braces never close."""
    matches = list(_BOX.finditer(text))
    return _content(text, matches[-1].end()) if matches else None


def last_boxes(text: str, most: int = 12) -> list[tuple[int, int, str | None]]:
    r"""(start, end, content) of the last ``\boxed`` and ``\fbox`` of ``text``, in order; the end is after the brace."""
    found = []
    for match in list(_BOX.finditer(text))[-most:]:
        content, end = _group(text, match.end())
        found.append((match.start(), end, content))
    return found


def _content(text: str, start: int) -> str | None:
    """The group in braces that opens at ``start``; without a group, the run of characters there."""
    return _group(text, start)[0]


def _group(text: str, start: int) -> tuple[str | None, int]:
    """As :func:`_content`, with the end position."""
    if not text.startswith("{", start):
        bare = _BARE.match(text, start)
        return (bare.group().rstrip(".,;"), bare.end()) if bare else (None, start)
    depth = 0
    for token in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0:
            return text[start + 1 : token.start()].strip(), token.end()
    return None, len(text)


_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right)(?![A-Za-z])", ""),
        (r"(?<!\\)\\[!,;: ]|\\quad|~", ""),
        (r"\{,\}", ","),
        (r"(?<=[0-9]),\s+(?=[0-9]{3}(?![0-9]))", ";"),  # "32, 349" is two numbers too
        (r"(?<![0-9])\s+|\s+(?![0-9])|\s+(?=[0-9]{3}(?![0-9]))", ""),  # "1 000" is a number, "3 4" is two
        (r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\{([^{}]*)\}", r"\1"),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\frac([0-9])([0-9])", r"\\frac{\1}{\2}"),
        (r"\\sqrt([0-9])", r"\\sqrt{\1}"),
        (r"\^(?:\\circ|\{\\circ\})|\\degree", ""),
        (r"\\?\$", ""),
        ("−", "-"),
        (r"\.+$", ""),
    )
]


def normalise(answer: str) -> str:
    r"""One spelling for answers that differ only in spacing and LaTeX markup.

    >>> normalise(r"\left( 3, \dfrac 12 \right)") == normalise(r"(3,\frac{1}{2})")
    True
    """
    for pattern, replacement in _SPELLINGS:
        answer = pattern.sub(replacement, answer)
    return answer
