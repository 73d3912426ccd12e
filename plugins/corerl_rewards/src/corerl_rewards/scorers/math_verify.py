r"""Scorer for mathematics in any form, with the library math-verify (Kydlíček, 2024,
github.com/huggingface/Math-Verify).

The answer is found by :func:`~corerl_rewards.scorers.extraction.final_answer`: a box, a phrase, a formula or a number.
The score is 1 if it is the same mathematical object as the ground truth:

==============================  =========================  =====
answer                          ground truth               score
==============================  =========================  =====
``\sqrt{12}``                   ``2\sqrt{3}``              1
``0.5``, ``50\%``               ``\frac{1}{2}``            1
``\{3, 1\}``, ``3, 1``          ``\{1, 3\}``               1
``(3, 1)``                      ``(1, 3)``                 0
``(0, 1]``                      ``0 < x \le 1``            1
``5\text{ cm}``                 ``5``                      1
==============================  =========================  =====

A tuple has an order; a set, and a list without brackets, has none. The scorer ``math`` requires a box; this one accepts
prose as well: use it for prompts that ask for no box. If the last formula cannot be parsed, math-verify's own search
would use an earlier one; here the last one is final.
"""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import MathVerifyOptions
from corerl_rewards.scorers.characters import answer_text
from corerl_rewards.scorers.equality import equal_answers, readable_truth
from corerl_rewards.scorers.extraction import final_answer, has_formula

_DEFAULT = MathVerifyOptions()


def math_verify(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: MathVerifyOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 where the response's answer equals ``ground_truth``, else 0.0.

    Raises:
        ValueError: ``ground_truth`` is empty.
        TimeoutError: math-verify took longer than ``options.timeout``.
    """
    truth = readable_truth(ground_truth)
    if has_formula(truth):  # a solution, or an answer between dollars
        truth = final_answer(truth) or truth
    answer = final_answer(answer_text(response, options))
    return {"score": float(bool(answer) and equal_answers(str(answer), truth, options.timeout)), "extracted": answer}
