r"""Whether an answer in LaTeX is the ground truth: one rule for all scorers of mathematics.

=============================  ===============================================================================
ground truth                   right answer
=============================  ===============================================================================
a number                       each value that the answer states is this number: not ``42 or 43``, ``41 = 42``
a list, a set in braces        the same elements in any order: ``x = 5 or x = -5`` is ``5, -5``
anything else                  the same object for math-verify; each alternative, and each number stated before
                               the last equals sign, too
=============================  ===============================================================================

Text, units and fractions are compared first, exactly; math-verify is called only if they do not decide.
"""

import re
from fractions import Fraction
from typing import Any

from corerl_rewards.scorers.boxed import normalise
from corerl_rewards.scorers.characters import readable
from corerl_rewards.scorers.exact_numbers import exact, is_number
from corerl_rewards.scorers.magnitude import enormous
from corerl_rewards.scorers.spelling import as_interval, as_latex, is_interval, rational
from corerl_rewards.scorers.texts import plain
from corerl_rewards.scorers.unit_table import Unit, known
from corerl_rewards.scorers.units import other_currency, ratio, split_unit
from corerl_rewards.scorers.values import (
    LONGEST_ANSWER,
    alternatives,
    claims,
    hedged,
    in_brackets,
    is_choice,
    number,
    other_base,
    parts,
    plain_bases,
    sides,
    without_label,
)
from corerl_rewards.scorers.verifier import Budget, Verifier

MOST_ELEMENTS = 24
"""elements of a list that are compared one by one"""

_BRACED = re.compile(r"\{(\w)\}")
_CHOICE = re.compile(
    r"(?:\\(?:text(?:bf|rm|it)?|math(?:rm|bf))\s*\{\s*)?(?:\(([A-J])\)|([A-J])[).:])"
    r"(?:\s|\\[,;:! ]|~)*\}?(?:\s|\\[,;:! ]|~)*(?=[^\s},;/])(?!(?:or|and)\b)"
)
_LETTERS = re.compile(
    r"(?:\\(?:text(?:bf|rm|it)?|math(?:rm|bf))\s*\{\s*)?\(?[A-J]\)?(?:\s*(?:,\s*and\b|,|and\b)\s*\(?[A-J]\)?)+\s*\}?$"
)
_SEVERAL_CHOICES = re.compile(r"\b(?:or|and|vs)\b|\([A-J]\)|\b[A-J][).]")
_SET = re.compile(r"(?:[A-Za-z]\s*=\s*)?\\\{(.*)\\\}|(?:[A-Za-z]\s*=\s*)?\{(.*,.*)\}", re.DOTALL)
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")
_WORDS = re.compile(r"\\(?:text|textbf|textrm|mbox|mathrm)\s*\{([^{}]*[A-Za-z]{2}[^{}]*)\}\.?|([A-Za-z]{4,})\.?")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z](?:_\{?\w+\}?)?)\s*=([^=]+)")
_DEGREE, _RADIAN = known("degree"), known("radian")
_VERIFIER = Verifier()


def readable_truth(ground_truth: Any) -> str:
    """The ground truth as text, in one spelling of characters.

    Raises:
        ValueError: it is empty.
    """
    truth = readable(str(ground_truth))
    if ground_truth is None or not truth.strip():
        raise ValueError("the ground truth is empty")
    return truth


def equal_answers(answer: str, truth: str, timeout: float) -> bool:
    r"""Whether two answers in LaTeX are equal.

    A comma between digits separates thousands or the elements of a list, as for math-verify: ``2,5`` is never 2.5. A
    number of more than a million digits, such as ``10^{10^{10}}``, is compared as text, because it cannot be computed.

    Args:
        timeout: seconds of processor time that math-verify may use for this answer.

    Raises:
        TimeoutError: math-verify took longer.
    """
    if is_number(answer) and is_number(truth):
        return exact(answer) == exact(truth) and not other_currency(answer, truth)
    if len(answer) > LONGEST_ANSWER:
        return normalise(answer) == normalise(truth)
    answer, truth = (plain_bases(as_latex(_LETTERS.sub(_letters, each.strip()))) for each in (answer, truth))
    return _Grader(timeout).accepts(answer, truth)


class _Grader:
    """Compares one answer with one ground truth."""

    def __init__(self, timeout: float) -> None:
        self._budget = Budget(timeout)

    def accepts(self, answer: str, truth: str) -> bool:
        """Whether the answer is the truth; each may begin with the letter of a choice: ``(C) 12``."""
        if hedged(answer, truth):
            return False
        if _same_text(answer, truth):
            return True
        (letter, value), (wanted, truth) = _split_choice(answer), _split_choice(truth)
        if letter and wanted:
            return letter == wanted and self._same(value, truth)
        if letter and letter == _bare(truth):
            return not _SEVERAL_CHOICES.search(value)
        if wanted and wanted == _bare(answer):
            return True
        return self._same(value, truth)

    def _same(self, answer: str, truth: str) -> bool:
        if other_base(answer, truth):
            return False
        if number(split_unit(truth)[0]) is not None:
            found = alternatives(answer)
            return bool(found) and all(self._same_part(part, truth) for part in found)
        if (wanted := _elements(truth)) is not None:
            inside = None if _SET.fullmatch(truth.strip()) else in_brackets(answer)
            return self._same_elements(_elements(answer) or (inside[1] if inside else parts(answer)), wanted)
        found = alternatives(answer)
        if len(found) == 1 or as_interval(answer) is not None:
            return self._same_part(found[0] if len(found) == 1 else answer, truth)
        if (inside := in_brackets(truth)) and inside[0] == "()" and not is_choice(answer):
            return self._same_in_order([_ASSIGNMENT.sub(r"\2", part) for part in found], inside[1])
        return bool(found) and all(self._same_part(part, truth) for part in found)

    def _same_elements(self, found: list[str], wanted: list[str]) -> bool:
        """Whether the elements are the same, in any order; for values without their names, in the same order."""
        if max(len(found), len(wanted)) > MOST_ELEMENTS:
            return False
        names = {match[1] for match in map(_ASSIGNMENT.fullmatch, wanted) if match}
        if len(names) == len(wanted) > 1 and "=" not in "".join(found):
            return self._same_in_order(found, wanted)
        return all(any(self._same_part(one, each) for one in found) for each in wanted) and all(
            any(self._same_part(one, each) for each in wanted) for one in found
        )

    def _same_in_order(self, found: list[str], wanted: list[str]) -> bool:
        return len(found) == len(wanted) and all(map(self._same_part, found, wanted))

    def _same_part(self, answer: str, truth: str) -> bool:
        """Whether an answer without alternatives is the truth."""
        answer = without_label(answer)
        if "=" not in truth and (assigned := _ASSIGNMENT.fullmatch(answer)):
            answer = assigned[2]
        if _same_text(answer, truth):
            return True
        (quantity, unit), (wanted, unit_wanted) = split_unit(answer), split_unit(truth)
        if unit == _DEGREE and _in_radians(wanted, unit_wanted):
            return self._same_value(f"\\frac{{{quantity}\\pi}}{{180}}", wanted)
        if unit_wanted == _DEGREE and _in_radians(quantity, unit):
            return self._same_value(quantity, f"\\frac{{{wanted}\\pi}}{{180}}")
        inside, inside_wanted = in_brackets(quantity), in_brackets(wanted)
        if inside and inside_wanted:
            return inside[0] == inside_wanted[0] and self._same_in_order(inside[1], inside_wanted[1])
        if (unit and unit_wanted is None and "%" in wanted) or (unit_wanted and unit is None and "%" in quantity):
            return False
        factor = ratio(unit, unit_wanted)
        return factor is not None and self._same_value(_scaled(quantity, factor), wanted)

    def _same_value(self, answer: str, truth: str) -> bool:
        settled = _settled(answer, truth)
        if settled is not None:
            return settled
        if number(truth) is None:
            return self._verified(answer, truth) and all(self._verified(side, truth) for side in _stated(answer, truth))
        found = claims(answer)
        return bool(found) and all(self._is_number(claim, truth) for claim in found or ())

    def _is_number(self, claim: str, truth: str) -> bool:
        settled = _settled(claim, truth)
        has_words = "\\text" in claim or "\\mbox" in claim
        return self._verified(claim, truth) if settled is None and not has_words else bool(settled)

    def _verified(self, answer: str, truth: str) -> bool:
        """Whether math-verify finds two answers to be the same object."""
        answer, truth = _alike(answer, truth)
        if enormous(answer) or enormous(truth):
            return _without_needless_braces(answer) == _without_needless_braces(truth)
        return _VERIFIER.equal(truth, answer, self._budget)


def _same_text(one: str, other: str) -> bool:
    """Whether two texts are equal without markup; words also without case and articles."""
    if "\\pi" in one and ("\\circ" in one) != ("\\circ" in other):
        return False
    if normalise(one) == normalise(other):
        return True
    words = [
        match and (match[1] or match[2]) for match in (_WORDS.fullmatch(one.strip()), _WORDS.fullmatch(other.strip()))
    ]
    return None not in words and plain(str(words[0])) == plain(str(words[1]))


def _bare(choice: str) -> str:
    return normalise(choice).strip("().")


def _letters(match: re.Match[str]) -> str:
    """``A, C`` for ``\\text{(A) and (C)}``."""
    return ", ".join(re.findall("(?<![A-Za-z])[A-J](?![A-Za-z])", match.group()))


def _split_choice(answer: str) -> tuple[str | None, str]:
    """The letter of a choice before an answer, and the answer."""
    match = _CHOICE.match(answer.strip())
    return (match[1] or match[2], answer.strip()[match.end() :]) if match else (None, answer)


def _elements(text: str) -> list[str] | None:
    r"""The elements of a set in braces or of a list; None for anything else.

    >>> _elements(r"\{1, 2\}"), _elements("x=1 or x=2"), _elements(r"1 \pm \sqrt{2}"), _elements("(1, 2)")
    (['1', '2'], ['x=1', 'x=2'], ['1 + \\sqrt{2}', '1 - \\sqrt{2}'], None)
    """
    match = _SET.fullmatch(text.strip())
    inner = (match[1] or match[2] or "") if match else ""
    is_set = match is not None and not re.search(r"\\\}[^{]*\\\{", inner)
    found = [each for part in parts(inner if is_set else text) for each in _both_signs(part)]
    return found if is_set or (len(found) > 1 and as_interval(text) is None) else None


def _both_signs(part: str) -> list[str]:
    return [_PLUS_MINUS.sub(sign, part) for sign in "+-"] if len(_PLUS_MINUS.findall(part)) == 1 else [part]


def _in_radians(quantity: str, unit: Unit | None) -> bool:
    return unit == _RADIAN or (unit is None and "\\pi" in quantity)


def _scaled(quantity: str, factor: Fraction) -> str:
    value = rational(normalise(quantity))
    if factor == 1:
        return quantity
    value = factor if value is None else value * factor
    text = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    return text if rational(normalise(quantity)) is not None else f"({quantity}) \\cdot {text}"


def _stated(answer: str, truth: str) -> list[str]:
    """The numbers on the sides of an equation before the last, unless the truth is an equation."""
    return sides(answer)[:-1] if "=" in answer and "=" not in truth else []


def _settled(answer: str, truth: str) -> bool | None:
    """Whether two answers are equal, by their text or their values as fractions; None if these do not decide."""
    left, right = normalise(answer), normalise(truth)
    per_cent, other_per_cent = left.endswith("%"), right.endswith("%")
    value, wanted = number(left), number(right)
    if left == right or _without_percent(left) == _without_percent(right):
        return True
    if value is None or wanted is None:
        return False if _set_and_tuple(left, right) else None
    if per_cent == other_per_cent:
        return value == wanted
    return value == wanted or (value / 100 == wanted if per_cent else value == wanted / 100)


def _set_and_tuple(left: str, right: str) -> bool:
    """Whether one is a set in braces and the other is in round brackets: only one of them has an order."""
    return any(one.startswith("\\{") and other.startswith("(") for one, other in ((left, right), (right, left)))


def _alike(answer: str, truth: str) -> tuple[str, str]:
    """Both answers; an inequality becomes an interval if the other is an interval."""
    left, right = normalise(answer), normalise(truth)
    if is_interval(right):
        return as_interval(answer) or answer, truth
    return (answer, as_interval(truth) or truth) if is_interval(left) else (answer, truth)


def _without_needless_braces(text: str) -> str:
    return _BRACED.sub(r"\1", normalise(text))


def _without_percent(text: str) -> str:
    return text.removesuffix("%").removesuffix("\\")
