r"""Scorer for mathematics in any form, on the library math-verify (Kydlíček, 2024, github.com/huggingface/Math-Verify).

The answer is looked for in this order: the last ``\boxed{}``; after the last "answer is" or "Answer:"; the last formula
between ``$…$``, ``\(…\)`` or ``\[…\]``; the last number. It scores 1 where it is the same mathematical object as the
ground truth:

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

A tuple has an order, a set or a list without brackets has none. Where the scorer ``math`` wants a box, this one takes
prose as well: choose it for data whose prompts ask for no box. math-verify's own search would also take a formula in
the middle of a response when the last one cannot be parsed; here the last one stands.
"""

import re
from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import MathVerifyOptions
from corerl_rewards.scorers.boxed import last_boxed
from corerl_rewards.scorers.exact_numbers import last_number
from corerl_rewards.scorers.math import equal_answers, readable_truth

_PHRASE = re.compile(r"\banswer(?:[ \t]+is|[ \t*]*:)[ \t:*]*([^\n]+)", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$((?:\\.|[^$\n\\])+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_CLAUSE = re.compile(r"\.(?:\s|$)|;|,?\s(?:because|since|which|as|so|not|but)\s")
TAIL = 4000
"""characters at the end of a response in which formulas and numbers are looked for"""

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
    if "$" in truth or "\\boxed" in truth:  # a solution, or an answer between dollars
        truth = final_answer(truth) or truth
    answer = final_answer(response)
    return {"score": float(bool(answer) and equal_answers(str(answer), truth, options.timeout)), "extracted": answer}


def final_answer(response: str) -> str | None:
    r"""The answer that a response ends on, or None.

    >>> final_answer("Thus the answer is $x = 5$."), final_answer(r"$a$ or \(b\)"), final_answer("7 or so")
    ('x = 5', 'b', '7')
    """
    if "\\boxed" in response or "\\fbox" in response:
        return last_boxed(response)
    tail = response[-TAIL:]
    phrases = _PHRASE.findall(tail)
    if phrases:
        return _bare(phrases[-1])
    formulas = _FORMULA.findall(tail)
    if formulas:
        return _content(formulas[-1])
    return last_number(tail)


def _bare(phrase: str) -> str:
    """What is said after "answer is": its formulas where it has some, else its first clause."""
    formulas = [_content(parts) for parts in _FORMULA.findall(phrase)]
    return ", ".join(formulas) if formulas else _CLAUSE.split(phrase, maxsplit=1)[0].strip(" *:.")


def _content(groups: tuple[str, ...]) -> str:
    """The one group of a matched formula that is filled."""
    return next((group for group in groups if group), "").strip().rstrip(".,;")
