r"""Whether an answer states exactly one number: lists, alternatives, equations and remarks are split.

math-verify reads ``41 = 42`` as 42, ``40\text{ or more}`` as 40 and ``40_8`` as 40. A policy rewarded for such answers
learns to hedge. Here every part of the answer must have the value of the ground truth.
"""

import itertools
import re
from collections.abc import Iterator
from fractions import Fraction

from corerl_rewards.scorers.boxed import normalise
from corerl_rewards.scorers.spelling import as_latex, rational
from corerl_rewards.scorers.units import split_unit

LONGEST_ANSWER = 1000
"""characters; longer answers are degenerate, and are compared as text"""

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_OPEN, _CLOSE = ("(", "[", "{", "\\{"), (")", "]", "}", "\\}")
_SEPARATORS = (",", ";", "\\lor", "\\vee", "\\quad", "\\qquad", "\\\\", "\\&")
_OR = r"(?:(?<![A-Za-z\\])(?:and|or|vs\.?|versus|alternatively)(?![A-Za-z])|或者|以及|[或和与及])"
_ALTERNATIVES = re.compile(rf"\\(?:text|textrm|mbox|mathrm)\s*\{{\s*,?\s*{_OR}\s*\}}|{_OR}")
_COMMA = r"(?:,(?:\\!\s*)?|\{,\}|\\,)"
_THOUSANDS = re.compile(  # the second form is Indian: 12,34,567
    rf"(?<![0-9.,])([0-9]{{1,3}}(?:{_COMMA}[0-9]{{3}})+|[0-9]{{1,2}}(?:{_COMMA}[0-9]{{2}})+{_COMMA}[0-9]{{3}})"
    r"(?![0-9]|,[0-9])"
)
_LABEL = re.compile(
    r"\s*(?:\\(?:text|textbf|textrm|mbox|mathrm)\s*\{(?P<text>[^{}0-9]*)\}|(?P<bare>[A-Za-z][A-Za-z ]*))"
    r"\s*(?P<colon>:)?(?P<rest>.*)",
    re.DOTALL,
)
_ASSERTS = re.compile(r"(?:\b(?:is|are|was|equals|exactly|precisely|simply|just|only)|[:=])\s*$", re.IGNORECASE)
_ASIDE = re.compile(r"(?<=[0-9}])\s+(?:\\text\s*\{\s*)?\((?!or\b|and\b)[A-Za-z][A-Za-z '-]{2,60}\)\s*\}?$")
_CHOICE = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])|或|\\lor(?![A-Za-z])")
_OPEN_END = re.compile(r"(?:[.,]\s*[0-9]*\s*(?:\.\.\.|…|\\[lc]?dots)|(?<![A-Za-z\\])(?:or|and|vs|versus|或))[\s.}]*$")
_REMARK = re.compile(
    r"(?<![A-Za-z\\])(?:not|no|neither|nor|either|if|unless|otherwise|else|maybe|perhaps|possibly|probably|"
    r"likely|guess|think|presumably|about|around|approximately|roughly|nearly|almost|"
    r"at (?:the )?(?:very )?(?:least|most)|(?:or|and|any|even|least|most)\b[^0-9]{0,20}?\b(?:more|less|fewer)|"
    r"(?:more|less|fewer|greater|larger|smaller|higher|lower|bigger)\W{0,12}than|than|"
    r"between|up to|unsure|could|might|may)(?![A-Za-z])|\?"
    r"|大约|大概|约|可能|也许|或许|不是|至少|至多|左右|以上|以下|超过",
    re.IGNORECASE,
)
_NUMERIC = re.compile(
    r"\\(?:[dtc]?frac|sqrt|cdot|times|div|left|right|pi|binom|log|ln|sin|cos|tan|lfloor|rfloor|lceil|rceil|circ)"
    r"(?![A-Za-z])"
)
_BASE = re.compile(r"(?<=[0-9])\s*_\s*(?:\{\s*(?:\\(?:text|mathrm)\s*\{)?\s*(\w+)\s*\}?\s*\}|([0-9]+|[A-Za-z]))")
_BRACKETED = re.compile(r"^\(([^()]*)\)(?=\\?%?$)|^\{([^{}]*)\}$")
_NAMES_OF_BASES = "two three four five six seven eight nine ten eleven twelve"
_NAMES = {name: str(base) for base, name in enumerate(_NAMES_OF_BASES.split(), 2)}
_NUMBER_WORDS = {name: Fraction(value) for value, name in enumerate(f"one {_NAMES_OF_BASES}".split(), 1)}


def hedged(answer: str, truth: str) -> bool:
    r"""Whether a word such as "more", "maybe" and "not", or dots, leave the answer open, and not the truth.

    >>> hedged(r"42 \text{ or more}", "42"), hedged(r"42 \text{ songs}", "42"), hedged(r"\text{not odd}", r"\text{not}")
    (True, False, False)
    """
    if _REMARK.search(answer) and not _REMARK.search(truth):
        return True
    return _OPEN_END.search(answer[-40:]) is not None and not _OPEN_END.search(truth[-40:])


def is_choice(answer: str) -> bool:
    """Whether alternatives are joined by "or"."""
    return _CHOICE.search(answer) is not None


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


def in_brackets(text: str) -> tuple[str, list[str]] | None:
    r"""The brackets and the elements of a tuple or an interval.

    >>> in_brackets("(1, 2]"), in_brackets(r"(0,1) \cup (2,3)")
    (('(]', ['1', '2']), None)
    """
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])\s*", "", text).strip()
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]"):
        return None
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token.group() in _OPEN) - (token.group() in _CLOSE)
        if depth == 0 and token.end() < len(text):
            return None
    elements = parts(text[1:-1])
    return (text[0] + text[-1], elements) if len(elements) > 1 else None


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
    for before, rounded in itertools.pairwise(found):
        yield before.rpartition("=")[2].strip(), rounded


def without_label(answer: str) -> str:
    r"""The answer without words that introduce it, and without words in brackets behind it.

    >>> without_label(r"\text{Total: } 5"), without_label("the answer is 5 (in all)"), without_label(r"\text{about }5")
    ('5', '5', '\\text{about }5')
    """
    if not _REMARK.search(answer):
        answer = _ASIDE.sub("", answer)
    match = _LABEL.fullmatch(answer)
    if match is None or not match["rest"].strip():
        return answer
    words = match["text"] if match["text"] is not None else match["bare"]
    introduces = match["colon"] or _ASSERTS.search(words)
    return match["rest"].strip() if introduces and not _REMARK.search(words) else answer


def claims(part: str) -> list[str] | None:
    r"""The numeric sides of a part of an answer, without units; None for a value with a wrong rounding.

    >>> claims(r"x = 3 + 4 = \$7"), claims(r"\frac13 \approx 0.35")
    (['3 + 4', '7'], None)
    """
    part = without_label(part)
    if any(misrounded(*pair) for pair in roundings(part)):
        return None
    return [split_unit(without_label(side))[0] for side in sides(part)]


def alternatives(answer: str) -> list[str]:
    r"""The parts of an answer, each of which must be right; a quantity such as 2 hours and 30 minutes is one.

    >>> alternatives("1,042 or 43"), alternatives(r"2 \text{ hours and } 30 \text{ minutes}")
    (['1042', '43'], ['2 \\text{ hours and } 30 \\text{ minutes}'])
    """
    return parts(plain_thousands(answer)) if number(split_unit(answer)[0]) is None else [answer]


def stated_value(answer: str) -> Fraction | None:
    r"""The one number that an answer states; None for several numbers, none, or one that is left open.

    >>> stated_value("$1,080."), stated_value("7 or 8"), stated_value("about 7"), stated_value("3½ cups")
    (Fraction(1080, 1), None, None, Fraction(7, 2))
    """
    if len(answer) > LONGEST_ANSWER or hedged(answer := as_latex(answer), ""):
        return None
    values = {number(claim) for part in alternatives(answer) for claim in claims(part) or [""]}
    return values.pop() if len(values) == 1 else None


def number(text: str) -> Fraction | None:
    """The value of a number or fraction, perhaps in brackets or with a per cent sign that does not count."""
    text = _BRACKETED.sub(r"\1\2", normalise(text)).removesuffix("%").removesuffix("\\")
    return _NUMBER_WORDS.get(text.lower()) or rational(text)


def misrounded(value: str, rounded: str) -> bool:
    """Whether two numbers differ by at least one unit of the second one's last digit."""
    one, other = number(value), number(rounded)
    digits = len(normalise(rounded).partition(".")[2])
    return one is not None and other is not None and abs(one - other) >= Fraction(1, 10**digits)


def _has_letters(side: str) -> bool:
    return re.search(r"[A-Za-z]", _NUMERIC.sub("", side)) is not None


def _split(text: str, separators: tuple[str, ...]) -> list[str]:
    """Cut at separators outside brackets."""
    found, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign in _OPEN or sign == "\\begin":
            depth += 1
        elif sign in _CLOSE or sign == "\\end":
            depth = max(0, depth - 1)
        elif depth == 0 and sign in separators:
            found.append(text[start : token.start()])
            start = token.end()
    return [*found, text[start:]]
