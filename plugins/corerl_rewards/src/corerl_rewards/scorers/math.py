r"""Scorer of MATH (Hendrycks et al., 2021, arXiv 2103.03874) and of any set whose answers stand in ``\boxed{}``."""

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import MathOptions
from corerl_rewards.scorers.boxed import last_boxed, normalise
from corerl_rewards.scorers.exact_numbers import exact, is_number
from corerl_rewards.scorers.magnitude import enormous
from corerl_rewards.scorers.spelling import as_interval, as_latex, is_interval, rational
from corerl_rewards.scorers.units import split_unit
from corerl_rewards.scorers.verifier import Verifier

if importlib.util.find_spec("math_verify") is None:
    raise ImportError("the scorer 'math' needs math-verify (pip install math-verify)")

LONGEST_ANSWER = 1000
"""characters; what is longer is a response gone astray, and is not handed to math-verify"""

_COMMA = re.compile(r"\s*-?(?:0|[1-9][0-9]{0,30}),[0-9]{1,30}\s*")
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
    r"""1.0 where the last ``\boxed{}`` of the response equals ``ground_truth``, else 0.0.

    Equal means: the same text after :func:`~corerl_rewards.scorers.boxed.normalise`, the same number, or the same
    mathematical object for math-verify, which is asked only when the first two do not settle it.

    Raises:
        ValueError: ``ground_truth`` is empty.
        TimeoutError: math-verify took longer than ``options.timeout``.
    """
    truth = readable_truth(ground_truth)
    answer = last_boxed(response)
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
    """Whether two answers in LaTeX are equal: as text, as numbers, as quantities of one unit, or for math-verify.

    A number of more than a million digits, such as ``10^{10^{10}}``, is compared as text: nobody could work it out.

    Raises:
        TimeoutError: math-verify took longer than ``timeout`` seconds.
    """
    answer, truth = _with_point(answer, truth), _with_point(truth, answer)
    if is_number(answer) and is_number(truth):
        return exact(answer) == exact(truth)
    if len(answer) > LONGEST_ANSWER:
        return normalise(answer) == normalise(truth)
    answer, truth = as_latex(answer), as_latex(truth)
    settled = _settled(answer, truth)
    if settled is None:
        (answer, unit), (truth, wanted) = split_unit(answer), split_unit(truth)
        if unit and wanted and unit != wanted:
            return False
        settled = _settled(answer, truth) if unit is not None or wanted is not None else None
    if settled is not None:
        return settled
    answer, truth = _alike(answer, truth)
    if enormous(answer) or enormous(truth):
        return _without_needless_braces(answer) == _without_needless_braces(truth)
    return _VERIFIER.equal(truth, answer, timeout)


def _with_point(number: str, other: str) -> str:
    """``1000,99`` as ``1000.99`` where the other number is written so."""
    return number.replace(",", ".") if "." in other and is_number(other) and _COMMA.fullmatch(number) else number


def _settled(answer: str, truth: str) -> bool | None:
    """Whether two answers are equal as far as their text or their values as fractions say; None where they do not."""
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
    """Whether one is a set in braces and the other in round brackets: only one of them has an order."""
    return any(one.startswith("\\{") and other.startswith("(") for one, other in ((left, right), (right, left)))


def _alike(answer: str, truth: str) -> tuple[str, str]:
    """The two, an inequality as an interval where the other is one."""
    left, right = normalise(answer), normalise(truth)
    if is_interval(right):
        return as_interval(answer) or answer, truth
    return (answer, as_interval(truth) or truth) if is_interval(left) else (answer, truth)


def _without_needless_braces(text: str) -> str:
    return _BRACED.sub(r"\1", normalise(text))


def _without_percent(text: str) -> str:
    return text.removesuffix("%").removesuffix("\\")
