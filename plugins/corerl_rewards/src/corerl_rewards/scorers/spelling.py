r"""Answers as people type them, converted to the LaTeX that mathematics software reads."""

import re
import unicodedata
from fractions import Fraction

from corerl_rewards.scorers.exact_numbers import exact, is_number

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon "
    "phi chi psi omega"
)
_CHARACTERS = {
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "⩽": r"\le ",
    "≦": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    "≧": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "∨": r"\lor ",
    "°": r"^\circ ",
    **{letter: rf"\mathbb{{{plain}}}" for letter, plain in zip("ℂℕℚℝℤ", "CNQRZ", strict=True)},
    **{
        chr(0x3B1 + place + (place > 16)): rf"\{name} "
        for place, name in enumerate(_GREEK.split())
        if name != "omicron"
    },
}
_TABLE = str.maketrans(_CHARACTERS)
_RUNS = (
    (re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+)"), "^{%s}"),
    (re.compile("([₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+)"), "_{%s}"),
    (re.compile("([¼-¾⅐-⅞↉])"), r"\frac{%s}"),
)
_NO_MARKUP = re.compile(  # fonts, colours and sizes
    r"\\(?:displaystyle|textstyle|boldmath|bf|it|rm|sf|tt|large|Large|LARGE|huge|Huge|small|normalsize|[bB]igg?[lr]?)"
    r"(?![A-Za-z])\s*|\\color\s*\{[^{}]*\}|^\s*\*\*|\*\*\s*$|`"
)
_SHOWN = re.compile(
    r"\\(?:underline|uline|bm|boldsymbol|pmb|mathbf|mathit|mathsf|mathtt|emph|textsl|texttt|ensuremath|[mh]box|text(?:color\s*"
    r"\{[^{}]*\})|(?:textbf|textit|textrm|textsf|textnormal|text|mathrm)(?=\s*\{\s*[-+]?(?:[0-9.]+|\\d?frac[0-9{}]+)\s*\}))\s*(?=\{)"
)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_DEGREES = r"\s*([0-9.]+)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))\s*"
_ANGLE = rf"\\(sin|cos|tan|cot|sec|csc)\s*(?:\({_DEGREES}\)|\{{{_DEGREES}\}}|{_DEGREES})"
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"√\s*([0-9]+|\w)", r"\\sqrt{\1}"),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\(?:varnothing|O)(?![A-Za-z])|^\\\{\s*\\\}$", r"\\emptyset"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\vee(?![A-Za-z])", r"\\lor"),
        (r"\\(?:euro|EUR)(?![A-Za-z])\s*|\\text\{\s*€\s*\}", "€"),
        (r"\\pounds(?![A-Za-z])\s*|\\text\{\s*£\s*\}", "£"),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<=[0-9])(?:\s|\\ )*(?:percent|per cent|\\text\{\s*percent\s*\})\.?$", r"\\%"),
        (r"(?<=[0-9])\s+(?=\\?%)", ""),
        (r"(?<![0-9/.,])([0-9]+)\s+([0-9]+)/([0-9]+)(?![0-9])", r"\1\\frac{\2}{\3}"),  # 3 1/2
        (r"(?<![\w.}])([0-9]+\.?[0-9]*|\.[0-9]+)[eE]([-+]?[0-9]{1,6})(?![\w.])", r"\1\\times 10^{\2}"),
        (r"(?<=[\w)])\s*\*\*\s*(?=[\w({-])", "^"),
        (r"(?<=\^\{)\+(?=[0-9])", ""),
        (r"\^\s*(-\s*[0-9]+|[0-9]{2,})(?![0-9.])", r"^{\1}"),
        (r"\\log_\s*(?:e(?![A-Za-z])|\{\s*e\s*\})", r"\\ln"),
        (_ANGLE, lambda match: rf"\{match[1]}{{\frac{{{match[2] or match[3] or match[4]}\pi}}{{180}}}}"),
        (r"(?<![0-9.,'_])([0-9]{1,3}(?:\.[0-9]{3}){2,})(?![0-9.])", lambda match: match[1].replace(".", "")),
        (
            r"(?<![\w.,'])([0-9]{1,3}(?:'[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+)(?![\w'])",
            lambda match: re.sub("['_]", "", match[1]),
        ),
        (r"\\dot\s*\{?([0-9])\}?([0-9]*)\\dot\s*\{?([0-9])\}?", r"\\overline{\1\2\3}"),
        (r"\\dot\s*\{?([0-9])\}?", r"\\overline{\1}"),
        (r"(?<=\.)([0-9]*)(?:\\bar\s*\{?([0-9]+)\}?|\(([0-9]+)\))", r"\1\\overline{\2\3}"),
        (
            r"(?<=\.)([0-9]{0,20}?)(?:([0-9])\2\2+|([0-9]{2,12}?)\3+)(?:\.{3}|\\[lc]?dots(?![A-Za-z]))",
            r"\1\\overline{\2\3}",
        ),
        (r"^\s*(?:[A-Za-z]|\([A-Za-z, ]+\))\s*\\in(?![A-Za-z])", ""),
    )
]
_REPEATING = re.compile(r"([0-9]{0,30})\.([0-9]{0,30})\\overline\s*\{([0-9]{1,30})\}")


def as_latex(answer: str) -> str:
    r"""The answer without fonts, with Unicode signs, repeating decimals and similar notation written in LaTeX.

    >>> as_latex("2π"), as_latex(r"0.1\overline{6}"), as_latex("3 1/2"), as_latex(r"\underline{\mathbf{42}}")
    ('2\\pi', '\\frac{1}{6}', '3\\frac{1}{2}', '42')
    """
    if not answer.isascii():
        for run, form in _RUNS:
            answer = "".join(form % _plain(part) if run.fullmatch(part) else part for part in run.split(answer))
        answer = answer.translate(_TABLE)
    answer = _without_fonts(_NO_MARKUP.sub("", answer))
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    return _REPEATING.sub(_repeating, answer).strip()


def _plain(signs: str) -> str:
    return unicodedata.normalize("NFKC", signs).replace("−", "-").replace("⁄", "}{")


def _without_fonts(text: str) -> str:
    """The text without commands such as ``\\mathbf{…}``, whose content stays."""
    while match := _SHOWN.search(text):
        depth, end = 0, len(text)
        for brace in _BRACES.finditer(text, match.end()):
            depth += {"{": 1, "}": -1}.get(brace.group(), 0)
            if depth == 0:
                end = brace.start()
                break
        text = f"{text[: match.start()]}{text[match.end() + 1 : end]}{text[end + 1 :]}"
    return text


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
