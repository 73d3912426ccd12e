"""The answer line of DAPO and Minerva."""

import pytest

from corerl_rewards.options import MathDapoOptions
from corerl_rewards.scorers.math_dapo import math_dapo


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("Answer: 34", 1.0),
        ("The sum is 34.\n\nAnswer: $34$", 1.0),
        ("**Answer:** 34", 1.0),
        ("**Answer: 34**", 1.0),
        (r"Answer: $\boxed{34}$.", 1.0),
        ("Answer: x = 34", 1.0),
        ("Answer: 34.0", 1.0),
        ("Answer: 034", 1.0),
        ("Answer: 34 square units", 1.0),
        (r"Answer: $34\text{ cm}^2$", 1.0),
        ("answer : 34", 1.0),
        ("Answer:\n34", 1.0),
        ("Answer: 5\nno\nAnswer: 34", 1.0),  # the last line counts
        ("Answer: 34\nno\nAnswer: 5", 0.0),
        ("Answer: 34 or 35", 0.0),
        ("Answer: 3 4", 0.0),
        ("Answer: -34", 0.0),
        ("Answer: 34x", 0.0),
        ("Answer: 33=34", 0.0),
        ("Answer: 30 + 4 = 34", 1.0),
        ("Answer: x=33, x=34", 0.0),
        ("Answer: .34", 0.0),
        ("<think>Answer: 34", 0.0),
        ("Answer: 34</think>", 0.0),
        ("Answer: ", 0.0),
        (r"\boxed{34}", 0.0),  # no line
        ("", 0.0),
    ],
)
def test_the_last_answer_line_is_compared(response: str, score: float) -> None:
    assert math_dapo(response, "34", "math_dapo", {})["score"] == score


@pytest.mark.parametrize(
    ("answer", "truth"), [("1,234", "1234"), (r"\dfrac{1}{2}", r"\frac12"), ("1/2", "0.5"), (r"2\sqrt 3", r"2\sqrt{3}")]
)
def test_answers_that_differ_in_dress_are_the_same(answer: str, truth: str) -> None:
    assert math_dapo(f"Answer: ${answer}$", truth, "math_dapo", {})["score"] == 1.0


def test_a_line_before_the_window_is_not_seen() -> None:
    response = "Answer: 34\n" + "x" * 300
    assert math_dapo(response, "34", "math_dapo", {})["score"] == 0.0
    assert math_dapo(response, "34", "math_dapo", {}, MathDapoOptions(window=400))["score"] == 1.0


def test_a_wrong_answer_costs_what_the_options_say() -> None:
    options = MathDapoOptions(wrong_score=-1.0)
    assert math_dapo("Answer: 5", "34", "math_dapo", {}, options) == {"score": -1.0, "extracted": "5"}
    assert math_dapo("no idea", "34", "math_dapo", {}, options) == {"score": -1.0, "extracted": None}
    assert math_dapo("Answer: 34", "34", "math_dapo", {}, options)["score"] == 1.0


def test_an_empty_ground_truth_is_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError, match="ground truth is empty"):
        math_dapo("Answer: ", " ", "math_dapo", {})


BOXED = MathDapoOptions(fallback_to_boxed=True, wrong_score=-1.0)


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (r"so it is \boxed{34}", 1.0),
        (r"so it is $\boxed{x = 34\text{ cm}}$.", 1.0),
        (r"so it is \boxed{1{,}034}", -1.0),
        (r"\boxed{5} no, \boxed{34}", 1.0),  # the last one
        (r"\boxed{34} no, \boxed{5}", -1.0),
        ("Answer: 34", 1.0),
        ("Answer: 5\n\\boxed{34}", -1.0),  # a line comes first
        ("Answer: 34\n\\boxed{5}", 1.0),
        ("Answer: \\boxed{34}", 1.0),
        (r"\boxed{34}" + "x" * 90, 1.0),  # 10 + 90 characters
        (r"\boxed{34}" + "x" * 91, -1.0),
        ("Answer: 5\n" + "x" * 300 + r"\boxed{34}", 1.0),  # the line is before the window
        (r"\boxed{34", -1.0),
        (r"\boxed{}", -1.0),
        ("34", -1.0),
        ("", -1.0),
    ],
)
def test_without_a_line_a_box_at_the_end_counts_as_in_verl(response: str, score: float) -> None:
    assert math_dapo(response, "34", "math_dapo", {}, BOXED)["score"] == score


def test_a_decimal_point_at_the_start_is_no_full_stop() -> None:
    assert math_dapo("Answer: .5", "1/2", "math_dapo", {})["score"] == 1.0
    assert math_dapo("Answer: .5", "5", "math_dapo", {})["score"] == 0.0
