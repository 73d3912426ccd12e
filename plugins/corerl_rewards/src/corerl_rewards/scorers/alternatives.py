r"""Boxes, formulas and numbers that a response joins as alternatives: ``5 or 7`` is one answer with two values.

===================================================  =====================================
response                                             answer
===================================================  =====================================
``\boxed{5}``, line break, ``\boxed{7}``             ``5, 7``: nothing but markup between
``\boxed{5} or possibly \boxed{7}``                  ``5, 7``
``\boxed{7} or 5``, ``5 or \boxed{7}``               ``7, 5`` and ``5, 7``
``which is $14 - 2$, or \boxed{12}``                 ``12``: the same value in other words
``$5$ or $7$``, ``x = 5 or x = 7``, ``5 或 7``        ``5, 7``
``about 7``, ``7 million``                           with the words that change the value
===================================================  =====================================
"""

import re
from collections.abc import Sequence

from corerl_rewards.scorers.boxed import last_boxes, normalise

NEAR = 120
"""characters around an answer that are searched for alternatives"""

_ONE = r"\$\$.+?\$\$|(?<!\\)\$(?:\\.|[^$\n\\])+\$|\\\((?!\s*\n).+?\\\)|\\\[.+?\\\]"
FORMULA = re.compile(_ONE, re.DOTALL)
BROKEN = re.compile(rf"({_ONE})|(?<!\\)\$[ \t]*\n[^$]*\n[ \t]*\$|\\\(\s*\n.*?\n[ \t]*\\\)", re.DOTALL)
"""a formula; a formula in a line that is broken over lines does not count, as for math-verify"""
_SIGNS = re.compile(r"^(?:\$\$?|\\[(\[])|(?:\$\$?|\\[)\]])$")
_PLAIN_NUMBER = (
    r"[-−–]?\\?\$?(?:[0-9]{1,3}(?:[, ][0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))(?:[.,][0-9]+)?"
    r"(?:\s*/\s*[0-9]+|\s*\\?%)?|-?\\[dt]?frac\{[^{}]+\}\{[^{}]+\}"
)
NUMBER = re.compile(rf"(?<![A-Za-z0-9_.^}}])(?:{_PLAIN_NUMBER})")

_WHITE = r"[\s,;&*_~(]|\\[,;:! ]|\\q?quad(?![A-Za-z])|\\text\s*\{|\}"
_GAP = r"[\s$,;:&{}()\[\]*_~–—-]|\\\\|\\[()\[\],;:! ]|\\q?quad(?![A-Za-z])|\\text\s*\{|\\(?:lor|vee)(?![A-Za-z])"
_AND_OR = r"\.(?=\s*or\b)|\b(?:and|x?or|oder|ou|either|vs|versus)\b|[或者和与以及|/]"
_OR = r"(?:\bor\b|或者?)"
_ALSO = r"\b(?:maybe|perhaps|possibly|alternatively|equivalently|else|even|also|respectively|simply|it|is)\b"
_NAME = r"[A-Za-z](?:_(?:\w|\{\w+\}))?\s*="
_ITEM = (
    r"\n\s*(?:(?:[0-9]{1,2}|[a-z])[.)](?=\s)|[-•](?=\s))|\([a-z0-9]\)"
    r"|\b(?:option|answer|case|part|possibility|root|solution)s?\b\s*\(?[a-z0-9]?\)?\s*:"
)
_BETWEEN_BOXES = re.compile(
    rf"(?:{_GAP}|{_AND_OR}|{_ALSO}|{_NAME}|for part \([a-z]\)|\+\++|{_ITEM})*\\?"
    rf"|(?:\s+[a-z]+){{0,2}},?\s+and(?:{_GAP}|{_ALSO})*\\?"
    rf"|(?:{_GAP})*\.?\s*\bx?or\b(?!\s+so\b)[^.\n]{{0,40}}|[^.\n]{{0,40}}\bx?or(?:{_GAP}|{_ALSO})*\\?",
    re.IGNORECASE,
)
_BETWEEN = re.compile(  # formulas or numbers: "5 apples or 7 apples", "5 and 7"
    rf"(?:{_WHITE})*(?:\s[a-z]+){{0,2}}(?:{_WHITE})*\.?(?:{_WHITE})*{_OR}(?:{_WHITE}|{_ALSO}|{_NAME})*"
    rf"|(?:{_WHITE})*(?:\band\b|[和与])(?:{_WHITE}|{_NAME})*",
    re.IGNORECASE,
)
_LISTED = re.compile(r"\s*\\?q?quad\s*|[,;]?\s*")
_COMMA = re.compile(rf"\s*[,;]\s*(?:{_NAME})?\s*")
_BEFORE = re.compile(  # "5 or", but not "14 - 2, or"
    rf"(?:^|(?<![-=+*/])[\s$(])(?P<value>(?:{_NAME}\s*)?(?:{_PLAIN_NUMBER}))(?:\s*\$|\s*\\\))?\s+"
    rf"(?:\\text\s*\{{\s*)?{_OR}(?:\}}|\s|\$|\\[(\[]|{_ALSO}|{_NAME})*$",
    re.IGNORECASE,
)
_FORMULA_WITH_DIGIT = r"\$[^$\n]{0,60}[0-9][^$\n]{0,60}\$|\\\([^\n]{0,60}?[0-9][^\n]{0,60}?\\\)"
_AFTER = re.compile(
    rf"(?:[\s$.,;()}}]|\\[)\]])*(?:\\text\s*\{{\s*)?{_OR}(?:\s|\}}|,|\(|{_ALSO}|{_NAME})*"
    rf"(?:(?P<value>{_FORMULA_WITH_DIGIT}|{_PLAIN_NUMBER})|(?P<open>(?:so|more|less|fewer|not|above|below)\b))"
    r"|(?:[\s$,;()}]|\\[)\]])*(?P<unsure>\?|\b(?:maybe|perhaps|possibly|probably|or something)\b)",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"(?:(?<![A-Za-z])(?:about|around|approximately|roughly|nearly|almost|maybe|perhaps|possibly|probably|likely|not|"
    r"(?:could|might|may) be|at least|at most|(?:more|less|fewer|greater) than)[\s$]+"
    r"|(?:大约|约|可能|也许|不|至少|至多)是?\s*)$",
    re.IGNORECASE,
)
_MULTIPLE = re.compile(
    r"[ \t]{0,4}(?:\\text\s*\{)?[ \t]{0,4}(?:[万亿千百]|左右|以[上下]|"
    r"(?:hundred|thousand|million|billion|trillion|dozen|squared|cubed)\b)",
    re.IGNORECASE,
)


def boxed_answer(text: str) -> str | None:
    r"""The last ``\boxed{}`` with its alternatives; None without one, '' if it is empty.

    >>> boxed_answer(r"\boxed{5}, so \boxed{7}"), boxed_answer(r"\boxed{5} or \boxed{7}")
    ('7', '5, 7')
    """
    return _boxed(text, in_prose=True)


def joined_boxes(text: str) -> str | None:
    r"""As :func:`boxed_answer`, without alternatives outside of boxes."""
    return _boxed(text, in_prose=False)


def _boxed(text: str, *, in_prose: bool) -> str | None:
    boxes = last_boxes(text)
    if not boxes or not boxes[-1][2]:
        return boxes[-1][2] if boxes else None
    first = len(boxes) - 1
    while first and _joins(text, boxes[first - 1], boxes[first][0]):
        first -= 1
    start, end = boxes[first][0], boxes[-1][1]
    contents = [content or "" for _, _, content in boxes[first:]]
    if in_prose:
        before = _BEFORE.search(text, max(0, start - NEAR), start)
        contents = [*([before["value"]] if before else []), *contents, *_following(text, end)]
    return _listed(contents)


def _joins(text: str, box: tuple[int, int, str | None], start: int) -> bool:
    """Whether a box is joined to the next one, which begins at ``start``; a box around it is not."""
    _, end, content = box
    return content is not None and end <= start <= end + NEAR and bool(_BETWEEN_BOXES.fullmatch(text, end, start))


def leading_formulas(text: str) -> str | None:
    r"""The formulas that a text begins with, and their alternatives; None without one.

    >>> leading_formulas("$5$ or $7$, because"), leading_formulas("so $5$")
    ('5, 7', None)
    """
    contents: list[str] = []
    end, match = 0, FORMULA.match(text)
    while match:
        contents.append(content_of(match.group()))
        end = match.end()
        gap = _BETWEEN.match(text, end) or _LISTED.match(text, end)
        match = FORMULA.match(text, gap.end() if gap else end)
    return _listed([*contents, *_following(text, end)]) if contents else None


def joined_items(text: str, items: Sequence[tuple[int, int]]) -> str | None:
    """The last of some parts of a text, (start, end) each, with those that it is joined to; None without parts."""
    if not items:
        return None
    first, last = len(items) - 1, items[-1][1]
    while first and _is_joined(text, items[first - 1][1], items[first][0], last):
        first -= 1
    start = items[first][0]
    contents = [content_of(text[begin:end]) for begin, end in items[first:]]
    doubt, multiple = _DOUBT.search(text, max(0, start - NEAR), start), _MULTIPLE.match(text, last)
    listed = _listed([*contents, *_following(text, last)])
    return f"{doubt.group() if doubt else ''}{listed}{multiple.group() if multiple else ''}".strip()


def _is_joined(text: str, end: int, start: int, last: int) -> bool:
    """Whether two formulas or numbers are one answer; by a comma only if no text follows."""
    if start - end > NEAR:
        return False
    by_comma = _COMMA.fullmatch(text, end, start) and not re.search(r"\w", text[last:])
    return bool(by_comma or _BETWEEN.fullmatch(text, end, start))


def _following(text: str, end: int) -> list[str]:
    """The alternative, or the word of doubt, that the text from ``end`` on begins with."""
    match = _AFTER.match(text, end, min(len(text), end + NEAR))
    if not match:
        return []
    return [match["unsure"] or (f"or {match['open']}" if match["open"] else content_of(match["value"]))]


def _listed(answers: Sequence[str]) -> str:
    """The answers as a list, without doubles."""
    return ", ".join(list({normalise(answer): answer for answer in reversed(answers)}.values())[::-1])


def content_of(formula: str) -> str:
    """The text between the signs of a formula; a text without such signs is unchanged."""
    formula = formula.strip()
    if FORMULA.fullmatch(formula):
        formula = _SIGNS.sub("", formula).strip().rstrip(",;")
    return formula if formula.endswith("..") else formula.removesuffix(".")
