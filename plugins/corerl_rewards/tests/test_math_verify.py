"""Mathematics in any form; expected values are mathematics, checked by hand."""

import pytest

from corerl_rewards.options import MathVerifyOptions
from corerl_rewards.scorers.extraction import final_answer
from corerl_rewards.scorers.math_verify import math_verify


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}, not 3", r"\frac{1}{2}"),
        (r"The answer is 5. It is \boxed{6}", "6"),  # a box comes first
        (r"\boxed{6", None),
        ("The answer is 5. It took 3 steps.", "5"),
        ("Answer: 5\nAnswer: 6", "6"),
        ("The final answer is **5**.", "5"),
        ("The answer is 12, not 7.", "12"),
        ("The answer is $x = 5$, because $2x = 10$.", "x = 5"),
        (r"The answer is $\$18$.", r"\$18"),
        ("We get $a$ and then $$b + 1$$", "b + 1"),
        (r"We get \[ x = \sqrt{12}. \]", r"x = \sqrt{12}"),
        (r"\(7\) or \(8\)", "7, 8"),
        (r"\boxed{7} and \boxed{8}", "7, 8"),
        (r"$\boxed{7}$, $\boxed{8}$ or $\boxed{ 8 }$", "7, 8"),
        (r"I had \boxed{7}, but it is \boxed{8}", "8"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{6} is a part. The final answer is $7$. I hope it is correct.", "7"),
        (r"\boxed{6} The final answer is positive, as 2 factors are negative.", "6"),
        (r"The final answer is $\boxed{7}$. I hope it is correct.", "7"),
        ("The answer is 40 songs. #### 40", "40"),
        ("\\boxed{7}, no.\n#### 6", "6"),
        ("#### 6\nNo: \\boxed{7}", "7"),
        (r"\boxed{7} \boxed{}", ""),
        ("Final Answer: The final answer is 12,000,023. I hope it is correct.", "12,000,023"),
        ("Final Answer: Jane started 3 hours ago.", "3"),
        ("Final Answer: The number of points of $f(x)$ is 19.", "19"),
        (r"\(y_1 = \boxed{2x} \) and \( y_2 = \boxed{3x} \)", "2x, 3x"),
        (r"\boxed{35 cm} ++++ \boxed{4}", "35 cm, 4"),
        (r"We add \boxed{2} + \boxed{3}", "3"),
        ("Answer $ \n 9 \n $", None),  # a formula in a line is not broken over lines
        ("Answer \\( \n 9 \n \\)", None),
        ("Answer $$ \n 9 \n $$", "9"),
        ("It is $5$\nor it is\n$6$", "5, 6"),
        ("Therefore P(A) = 2/3", "2/3"),
        ("The answer is between 30 and 34", "between 30 and 34"),
        ("There are 12 of them", "12"),
        ("none", None),
        ("", None),
    ],
)
def test_the_answer_is_looked_for_in_boxes_phrases_formulas_and_numbers(response: str, answer: str | None) -> None:
    assert final_answer(response) == answer


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        (r"\sqrt{\sqrt{16}}", "2", 1.0),  # nested
        (r"\{3, 1, 2\}", r"\{1,2,3\}", 1.0),  # sets
        (r"\{1, 2\}", r"\{1,2,3\}", 0.0),
        (r"\{1, 2\}", "(1,2)", 0.0),
        ("(0, 1]", "(0,1]", 1.0),  # intervals
        ("[0, 1]", "(0,1]", 0.0),
        (r"0 < x \le 1", "(0,1]", 1.0),
        (r"x < 2 \text{ or } x > 3", r"(-\infty,2)\cup(3,\infty)", 1.0),
        (r"\begin{bmatrix}1 & 0.5\end{bmatrix}", r"\begin{pmatrix}1&\frac12\end{pmatrix}", 1.0),  # matrices
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", 0.0),
        (r"5\text{ cm}", "5", 1.0),  # units
        (r"5\text{ m}", r"5\text{ cm}", 0.0),
        ("18 dollars", "18", 1.0),
        (r"50\%", "0.5", 1.0),  # percent
        ("50", r"50\%", 1.0),
        ("0.5", "50", 0.0),
        ("3, 1", "1, 3", 1.0),  # lists
        ("(3, 1)", "(1, 3)", 0.0),
        (r"x = 1 \text{ or } x = 3", "1, 3", 1.0),
        ("½", "0.5", 1.0),  # Unicode
        ("2π", r"2\pi", 1.0),
        (r"0.\overline{3}", r"\frac{1}{3}", 1.0),
        ("0.3333333333", r"\frac{1}{3}", 0.0),
        ("3 4", "34", 0.0),
        ("1000,99", "1000.99", 0.0),  # a comma is never a decimal point
        ("0,5", "0.5", 0.0),
        ("1,2", "12", 0.0),
        ("12.5", "12,500", 0.0),
        ("25,740", "25740.0", 1.0),
    ],
)
def test_equal_means_equal_mathematics(answer: str, truth: str, score: float) -> None:
    assert math_verify(f"The answer is ${answer}$.", truth, "numina_olympiads", {})["score"] == score


@pytest.mark.parametrize(
    "truth", [r"\$15,\!000", "$15000$", r"so it is $\boxed{15{,}000}$.", "$15,000", r"\(15000\)", "15000 dollars"]
)
def test_the_ground_truth_may_be_dressed_too(truth: str) -> None:
    assert math_verify("The answer is $15000$", truth, "", {})["score"] == 1.0
    assert math_verify("The answer is $1500$", truth, "", {})["score"] == 0.0


def test_an_empty_ground_truth_is_an_error_and_not_a_score() -> None:
    for truth in ("", " ", None):
        with pytest.raises(ValueError, match="ground truth is empty"):
            math_verify("The answer is 5", truth, "", {})


def test_a_comparison_that_never_ends_is_ended_at_its_timeout() -> None:
    with pytest.raises(TimeoutError):
        math_verify(r"The answer is $\prod_{k=1}^{10000000} k$", "5", "", {}, MathVerifyOptions(timeout=0.5))
