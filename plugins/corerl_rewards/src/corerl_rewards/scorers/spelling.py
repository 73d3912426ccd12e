r"""Answers as people type them, converted to the LaTeX that mathematics software reads."""

import re
from fractions import Fraction

from corerl_rewards.scorers.exact_numbers import exact, is_number

_CHARACTERS = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "°": r"^\circ ",
    "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
    **{chr(0x660 + digit): str(digit) for digit in range(10)},
    **{power: f"^{{{digit}}}" for digit, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}
_TABLE = str.maketrans(_CHARACTERS)
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"√\s*([0-9]+|\w)", r"\\sqrt{\1}"),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\(?:euro|EUR)(?![A-Za-z])\s*|\\text\{\s*€\s*\}", "€"),
        (r"\\pounds(?![A-Za-z])\s*|\\text\{\s*£\s*\}", "£"),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<=[0-9])(?:\s|\\ )*(?:percent|\\text\{\s*percent\s*\})\.?$", r"\\%"),
        (r"(?<![0-9/.,])([0-9]+)\s+([0-9]+)/([0-9]+)(?![0-9])", r"\1\\frac{\2}{\3}"),  # 3 1/2
        (r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])", ""),
    )
]
_REPEATING = re.compile(r"([0-9]{0,30})\.([0-9]{0,30})\\overline\{([0-9]{1,30})\}")


def as_latex(answer: str) -> str:
    r"""The answer with Unicode signs, repeating decimals and similar notation written in LaTeX.

    >>> as_latex("2π"), as_latex(r"0.1\overline{6}"), as_latex("3 1/2")
    ('2\\pi ', '\\frac{1}{6}', '3\\frac{1}{2}')
    """
    answer = answer.translate(_TABLE)
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    return _REPEATING.sub(_repeating, answer)


def _repeating(match: re.Match[str]) -> str:
    whole, start, period = match.groups()
    shift = 10 ** len(start)
    value = Fraction(int(whole + start or "0"), shift) + Fraction(int(period), shift * (10 ** len(period) - 1))
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


_FRACTION = re.compile(
    r"(?P<sign>-?)(?:(?P<whole>[0-9]{1,50})?\\frac\{(?P<top>-?[0-9]{1,50})\}\{(?P<bottom>-?[0-9]{1,50})\}"
    r"|(?P<over>[0-9]{1,50})/(?P<under>[0-9]{1,50}))"
)


def rational(text: str) -> Fraction | None:
    r"""The exact value of a number, a fraction or a mixed number; None for other texts.

    Args:
        text: an answer after :func:`~corerl_rewards.scorers.boxed.normalise`.

    >>> rational("0.5"), rational(r"-1\frac{1}{2}"), rational("7/2"), rational(r"\sqrt{2}")
    (Fraction(1, 2), Fraction(-3, 2), Fraction(7, 2), None)
    """
    if is_number(text):
        return Fraction(exact(text)) if len(text) <= 1000 else None
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    top, bottom = int(match["top"] or match["over"]), int(match["bottom"] or match["under"])
    if bottom == 0 or (match["whole"] and (top < 0 or bottom < 0)):
        return None
    value = int(match["whole"] or "0") + Fraction(top, bottom)
    return -value if match["sign"] else value


_RELATIONS = [
    (re.compile(pattern), sign)
    for pattern, sign in (
        (r"\\(?:leqslant|leq|le)(?![A-Za-z])|<=", "≤"),
        (r"\\(?:geqslant|geq|ge)(?![A-Za-z])|>=", "≥"),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
    )
]
_OR = re.compile(r"\\text\{\s*or\s*\}|\\cup(?![A-Za-z])|\\lor(?![A-Za-z])|\bor\b")
_BETWEEN = re.compile(r"([^<>≤≥,=]+)([<≤])([A-Za-z])([<≤])([^<>≤≥,=]+)")
_VARIABLE_FIRST = re.compile(r"([A-Za-z])([<>≤≥])([^<>≤≥,=]+)")
_VALUE_FIRST = re.compile(r"([^<>≤≥,=]+)([<>≤≥])([A-Za-z])")
_TURNED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}


def is_interval(text: str) -> bool:
    """Whether a text (without spaces) looks like an interval or a union of intervals."""
    return text[:1] in "([" and text[-1:] in ")]" and ("," in text) and text.count(",") == text.count("\\cup") + 1


def as_interval(text: str) -> str | None:
    r"""An inequality in one variable as an interval; None for other texts.

    >>> as_interval(r"0 < x \le 1"), as_interval(r"x<2 \text{ or } x>3"), as_interval("x = 1")
    ('(0,1]', '(-\\infty,2)\\cup(3,\\infty)', None)
    """
    for pattern, sign in _RELATIONS:
        text = pattern.sub(sign, text)
    parts = [_interval("".join(part.split())) for part in _OR.split(text)]
    return None if None in parts else "\\cup".join(filter(None, parts))


def _interval(text: str) -> str | None:
    if between := _BETWEEN.fullmatch(text):
        low, left, _, right, high = between.groups()
        return f"{'[' if left == '≤' else '('}{low},{high}{']' if right == '≤' else ')'}"
    if match := _VARIABLE_FIRST.fullmatch(text):
        _, relation, value = match.groups()
    elif match := _VALUE_FIRST.fullmatch(text):
        value, relation = match[1], _TURNED[match[2]]
    else:
        return None
    if relation in "<≤":
        return f"(-\\infty,{value}{']' if relation == '≤' else ')'}"
    return f"{'[' if relation == '≥' else '('}{value},\\infty)"
