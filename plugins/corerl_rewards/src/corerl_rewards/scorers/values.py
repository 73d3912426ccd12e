r"""Whether an answer states exactly one number: lists, alternatives, equations and remarks are split.

math-verify reads ``41 = 42`` as 42, ``40\text{ or more}`` as 40 and ``40_8`` as 40. A policy rewarded for such answers
learns to hedge. Here every part of the answer must have the value of the ground truth.
"""

import itertools
import re
from collections.abc import Iterator

from corerl_rewards.scorers.units import split_unit

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_OPEN, _CLOSE = ("(", "[", "{", "\\{"), (")", "]", "}", "\\}")
_SEPARATORS = (",", ";", "\\lor", "\\vee", "\\quad", "\\qquad", "\\\\")
_ALTERNATIVES = re.compile(
    r"\\(?:text|textrm|mbox|mathrm)\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
)
_THOUSANDS = re.compile(r"(?<![0-9.,])([0-9]{1,3}(?:(?:,(?:\\!\s*)?|\{,\}|\\,)[0-9]{3})+)(?![0-9]|,[0-9])")
_LABEL = re.compile(
    r"\s*(?:\\(?:text|textbf|textrm|mbox|mathrm)\s*\{(?P<text>[^{}0-9]*)\}|(?P<bare>[A-Za-z][A-Za-z ]*))"
    r"\s*(?P<colon>:)?(?P<rest>.*)",
    re.DOTALL,
)
_ASSERTS = re.compile(r"(?:\b(?:is|are|was|equals)|[:=])\s*$", re.IGNORECASE)
_REMARK = re.compile(
    r"(?<![A-Za-z\\])(?:not|no|neither|nor|either|if|unless|otherwise|else|maybe|perhaps|possibly|probably|"
    r"likely|guess|about|around|approximately|roughly|nearly|almost|least|most|more|less|fewer|than|between|up to|"
    r"unsure)(?![A-Za-z])|\?",
    re.IGNORECASE,
)
_NUMERIC = re.compile(
    r"\\(?:[dtc]?frac|sqrt|cdot|times|div|left|right|pi|binom|log|ln|sin|cos|tan|lfloor|rfloor|lceil|rceil|circ)"
    r"(?![A-Za-z])"
)
_BASE = re.compile(r"(?<=[0-9])\s*_\s*(?:\{\s*(?:\\(?:text|mathrm)\s*\{)?\s*(\w+)\s*\}?\s*\}|([0-9]+|[A-Za-z]))")
_NAMES_OF_BASES = "two three four five six seven eight nine ten eleven twelve"
_NAMES = {name: str(base) for base, name in enumerate(_NAMES_OF_BASES.split(), 2)}


def hedged(answer: str, truth: str) -> bool:
    r"""Whether the answer has a word that leaves it open, such as "more", "maybe" and "not", and the truth does not.

    >>> hedged(r"42 \text{ or more}", "42"), hedged(r"42 \text{ songs}", "42"), hedged(r"\text{not odd}", r"\text{not}")
    (True, False, False)
    """
    return _REMARK.search(answer) is not None and _REMARK.search(truth) is None


def other_base(answer: str, truth: str) -> bool:
    r"""Whether the answer has another base than the truth; a base may be omitted. Both after :func:`plain_bases`.

    >>> other_base("42_{7}", "42"), other_base("42", "42_{7}"), other_base("42_{8}", "42_{7}")
    (True, False, True)
    """
    bases = {_base(match) for match in _BASE.finditer(answer)}
    return bool(bases) and bases != {_base(match) for match in _BASE.finditer(truth)}


def _base(match: re.Match[str]) -> str:
    name = (match[1] or match[2]).lower()
    return _NAMES.get(name, name)


def plain_bases(answer: str) -> str:
    r"""The answer with each base as a number, and without base ten.

    >>> plain_bases(r"42_{\text{seven}}"), plain_bases("42_7"), plain_bases("42_{10}"), plain_bases("x_7")
    ('42_{7}', '42_{7}', '42', 'x_7')
    """
    return _BASE.sub(_plain_base, answer) if "_" in answer else answer


def _plain_base(match: re.Match[str]) -> str:
    base = _base(match)
    return "" if base == "10" else f"_{{{base}}}"


def plain_thousands(answer: str) -> str:
    r"""The answer without separators of thousands.

    >>> plain_thousands("x = 12,500"), plain_thousands(r"11{,}232"), plain_thousands("1, 234"), plain_thousands("1,2")
    ('x = 12500', '11232', '1, 234', '1,2')
    """
    return _THOUSANDS.sub(lambda match: re.sub(r"[^0-9]", "", match[1]), answer)


def parts(answer: str) -> list[str]:
    r"""The parts between commas, semicolons, "and" and "or" outside brackets.

    >>> parts(r"41, 42 \text{ or } \max(1, 2)")
    ['41', '42', '\\max(1, 2)']
    """
    separated = _ALTERNATIVES.sub(";", answer)
    return [part.strip() for part in _split(separated, _SEPARATORS) if part.strip()]


def sides(answer: str) -> list[str]:
    r"""The numeric sides of an equation, and the last side; with ``\approx``, the sides before it.

    >>> sides("x = 3 + 4 = 7"), sides(r"f(2) = 7"), sides(r"7 \approx 8"), sides("7")
    (['3 + 4', '7'], ['7'], ['7'], ['7'])
    """
    exact, *rounded = _split(answer, ("\\approx", "≈"))
    if rounded and _has_letters(exact.rpartition("=")[2]):  # x \approx 7
        exact = rounded[0]
    found = [side.strip() for side in _split(exact, ("=",))]
    return [side for side in found[:-1] if side and not _has_letters(side)] + found[-1:]


def roundings(answer: str) -> Iterator[tuple[str, str]]:
    r"""(the value before, the value after) each ``\approx``."""
    found = [side.strip() for side in _split(answer, ("\\approx", "≈"))]
    for exact, rounded in itertools.pairwise(found):
        yield exact.rpartition("=")[2].strip(), rounded


def without_label(answer: str) -> str:
    r"""The answer without words that introduce it.

    >>> without_label(r"\text{Total: } 5"), without_label(r"\text{The answer is }5"), without_label(r"\text{about }5")
    ('5', '5', '\\text{about }5')
    """
    match = _LABEL.fullmatch(answer)
    if match is None or not match["rest"].strip():
        return answer
    words = match["text"] if match["text"] is not None else match["bare"]
    introduces = match["colon"] or _ASSERTS.search(words)
    return match["rest"].strip() if introduces and not _REMARK.search(words) else answer


def has_words(answer: str) -> bool:
    r"""Whether text is left in the answer; a number has none."""
    return "\\text" in split_unit(answer)[0] or "\\mbox" in answer


def _has_letters(side: str) -> bool:
    return re.search(r"[A-Za-z]", _NUMERIC.sub("", side)) is not None


def _split(text: str, separators: tuple[str, ...]) -> list[str]:
    """Cut at separators outside brackets."""
    found, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth = max(0, depth - 1)
        elif depth == 0 and sign in separators:
            found.append(text[start : token.start()])
            start = token.end()
    return [*found, text[start:]]
