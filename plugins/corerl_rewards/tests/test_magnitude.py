"""Numbers too large to be worked out; which they are was found with logarithms, by hand."""

import time

import pytest

from corerl_rewards.scorers.magnitude import enormous
from corerl_rewards.scorers.math import math
from corerl_rewards.scorers.math_verify import math_verify


@pytest.mark.parametrize(
    "latex",
    [
        "9^{9^{9}}",
        "10^{10^{10}}",
        "2^{2^{2^{2^{2^2}}}}",  # 2^65536 digits
        "10^{10000001}",
        "3^{2200000}",  # 2,200,000 · 0.477 = 1,049,667 digits
        "10^{-10^{10}}",
        r"\left(\frac12\right)^{10^{12}}",
        r"\sqrt{10^{10^{10}}}",
        "10^{10^{10}}/10^{10^{10}}",
        "5 - 9^{9^9}",
        "2^{{10}^{{10}}}",
        "1.5^{10^9}",
        "100!!!",  # a factorial of a factorial of a factorial
        "(10^6)!",
        r"\binom{100000000}{5000000}",  # 5,000,000 · log10(20 e) at most
    ],
)
def test_a_number_of_more_than_a_million_digits_is_enormous(latex: str) -> None:
    assert enormous(latex)


@pytest.mark.parametrize(
    "latex",
    [
        "10^{999999}",
        "3^{2000000}",
        "1^{10^{10}}",
        "(-1)^{10^{10}}",
        "0^{10^{10}}",
        "x^{10^{10}}",
        "e^{10^{10}}",
        "a_{10^{10}}",
        "(x+1)^{10^4}",
        "2^{-3}",
        "100!",
        "n!",
        r"\binom{5}{2}",
        r"\sum_{k=1}^{10^{10}} k",
        r"90^\circ",
        *("", "^", "!", "2^", "}^{", "{{{^", r"\binom", r"\frac^", "1/0^2", "(" * 999 + "2^2"),
    ],
)
def test_all_else_is_not(latex: str) -> None:
    assert not enormous(latex)


@pytest.mark.parametrize("scorer", [math, math_verify])
def test_an_enormous_answer_is_right_or_wrong_at_once(scorer: object) -> None:
    start = time.process_time()
    score = [
        scorer(rf"\boxed{{{answer}}}", truth, "", {})["score"]  # type: ignore[operator]
        for answer, truth in (
            ("10^{10^{10}}", "5"),
            ("5", "10^{10^{10}}"),
            ("9^{9^9}", "9^{9^{9}}"),
            ("9^{9^9} + 1", "9^{9^{9}}"),
        )
    ]
    assert score == [0.0, 0.0, 1.0, 0.0]
    assert time.process_time() - start < 1.0
