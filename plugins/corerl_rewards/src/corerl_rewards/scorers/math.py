r"""Scorer of MATH (Hendrycks et al., 2021, arXiv 2103.03874) and of any set whose answers stand in ``\boxed{}``."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import MathOptions
from corerl_rewards.scorers.boxed import last_boxed, normalise
from corerl_rewards.scorers.exact_numbers import exact, is_number
from corerl_rewards.scorers.verifier import Verifier

if importlib.util.find_spec("math_verify") is None:
    raise ImportError("the scorer 'math' needs math-verify (pip install math-verify)")

LONGEST_ANSWER = 1000
"""characters; what is longer is a response gone astray, and is not handed to math-verify"""

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
    """Whether two answers in LaTeX are equal: as text, as numbers, or for math-verify.

    Raises:
        TimeoutError: math-verify took longer than ``timeout`` seconds.
    """
    left, right = normalise(answer), normalise(truth)
    if _without_percent(left) == _without_percent(right):
        return True
    if is_number(left) and is_number(right):
        return exact(left) == exact(right)
    return len(answer) <= LONGEST_ANSWER and _VERIFIER.equal(truth, answer, timeout)


def _without_percent(text: str) -> str:
    return text.removesuffix("%").removesuffix("\\")
