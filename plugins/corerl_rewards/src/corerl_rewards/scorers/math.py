r"""Scorer of MATH (Hendrycks et al., 2021, arXiv 2103.03874) and of any set with answers in ``\boxed{}``."""

import importlib.util
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_rewards.options import MathOptions
from corerl_rewards.scorers.boxed import last_boxed, normalise
from corerl_rewards.scorers.exact_numbers import exact, is_number
from corerl_rewards.scorers.magnitude import enormous
from corerl_rewards.scorers.spelling import as_interval, as_latex, is_interval, rational
from corerl_rewards.scorers.units import other_currency, split_unit
from corerl_rewards.scorers.values import (
    has_words,
    hedged,
    other_base,
    parts,
    plain_bases,
    plain_thousands,
    roundings,
    sides,
    without_label,
)
from corerl_rewards.scorers.verifier import Verifier

if importlib.util.find_spec("math_verify") is None:
    raise ImportError("the scorer 'math' needs math-verify (pip install math-verify)")

LONGEST_ANSWER = 1000
"""characters; longer answers are degenerate, and are not passed to math-verify"""

_BRACED = re.compile(r"\{(\w)\}")
_DEFAULT = MathOptions()
_VERIFIER = Verifier()


def math(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: MathOptions = _DEFAULT,
) -> Mapping[str, Any]:
    r"""1.0 if the last ``\boxed{}`` of the response equals ``ground_truth``, else 0.0.

    Equal means: the same text after :func:`~corerl_rewards.scorers.boxed.normalise`, the same number, or the same
    mathematical object for math-verify, which is used only if the first two comparisons do not decide.

    Raises:
        ValueError: ``ground_truth`` is empty.
        TimeoutError: math-verify took longer than ``options.timeout``.
    """
    truth = readable_truth(ground_truth)
    answer = last_boxed(answer_part(response, options))
    return {"score": float(bool(answer) and equal_answers(str(answer), truth, options.timeout)), "extracted": answer}


def readable_truth(ground_truth: Any) -> str:
    """The ground truth as text.

    Raises:
        ValueError: it is empty.
    """
    truth = str(ground_truth)
    if ground_truth is None or not truth.strip():
        raise ValueError("the ground truth is empty")
    return truth


def equal_answers(answer: str, truth: str, timeout: float) -> bool:
    r"""Whether two answers in LaTeX are equal: as text, as numbers, as quantities of one unit, or for math-verify.

    A comma between digits separates thousands or the elements of a list, as for math-verify: ``2,5`` is never 2.5. If
    the truth is a number, every part of the answer must have its value: ``42 \text{ or } 43`` and ``41 = 42`` are not
    42. A number of more than a million digits, such as ``10^{10^{10}}``, is compared as text, because it cannot be
    computed.

    Raises:
        TimeoutError: math-verify took longer than ``timeout`` seconds.
    """
    if is_number(answer) and is_number(truth):
        return exact(answer) == exact(truth) and not other_currency(answer, truth)
    if len(answer) > LONGEST_ANSWER:
        return normalise(answer) == normalise(truth)
    answer, truth = plain_bases(as_latex(answer)), plain_bases(as_latex(truth))
    (quantity, unit), (wanted, unit_wanted) = split_unit(answer), split_unit(truth)
    if other_currency(answer, truth) or (unit and unit_wanted and unit != unit_wanted):
        return False
    settled = _settled(answer, truth)
    if settled is None and (unit is not None or unit_wanted is not None):
        settled = _settled(quantity, wanted)
    if settled is not None:
        return settled
    if hedged(quantity, wanted) or other_base(quantity, wanted):
        return False
    if _number(wanted) is not None:
        found = parts(plain_thousands(quantity))
        return bool(found) and all(_is_number(part, wanted, timeout) for part in found)
    return _verified(quantity, wanted, timeout) and all(
        _verified(side, wanted, timeout) for side in _stated(quantity, wanted)
    )


def _is_number(part: str, truth: str, timeout: float) -> bool:
    """Whether every numeric side of an equation, a part of an answer, has the value of ``truth``."""
    part = without_label(part)
    return not any(_misrounded(*pair) for pair in roundings(part)) and all(
        _has_value(side, truth, timeout) for side in sides(part)
    )


def _has_value(side: str, truth: str, timeout: float) -> bool:
    side, _ = split_unit(without_label(side))
    settled = _settled(side, truth)
    return _verified(side, truth, timeout) if settled is None and not has_words(side) else bool(settled)


def _misrounded(value: str, rounded: str) -> bool:
    """Whether two numbers differ by at least one unit of the second one's last digit."""
    number, other = _number(value), _number(rounded)
    digits = len(normalise(rounded).partition(".")[2])
    return number is not None and other is not None and abs(number - other) >= Fraction(1, 10**digits)


def _stated(answer: str, truth: str) -> list[str]:
    """The numbers on the sides of an equation before the last, unless the truth is an equation or the answer a list."""
    return sides(answer)[:-1] if "=" in answer and "=" not in truth and len(parts(answer)) == 1 else []


def _number(text: str) -> Fraction | None:
    return rational(_without_percent(normalise(text)))


def _verified(answer: str, truth: str, timeout: float) -> bool:
    """Whether math-verify, which would round a decimal to six places, finds two answers to be the same object."""
    answer, truth = _alike(_as_fraction(answer), truth)
    if enormous(answer) or enormous(truth):
        return _without_needless_braces(answer) == _without_needless_braces(truth)
    return _VERIFIER.equal(truth, answer, timeout)


def _settled(answer: str, truth: str) -> bool | None:
    """Whether two answers are equal, by their text or their values as fractions; None if these do not decide."""
    left, right = normalise(answer), normalise(truth)
    if left == right:
        return True
    per_cent, other_per_cent = left.endswith("%"), right.endswith("%")
    left, right = _without_percent(left), _without_percent(right)
    if left == right:
        return True
    value, wanted = rational(left), rational(right)
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


def _as_fraction(answer: str) -> str:
    value = _number(answer) if "." in answer and "%" not in answer else None
    return answer if value is None else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _without_needless_braces(text: str) -> str:
    return _BRACED.sub(r"\1", normalise(text))


def _without_percent(text: str) -> str:
    return text.removesuffix("%").removesuffix("\\")
