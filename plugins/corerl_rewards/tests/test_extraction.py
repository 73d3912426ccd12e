"""The answer that a response states."""

import time

import pytest

from corerl_rewards.scorers.alternatives import boxed_answer, joined_boxes
from corerl_rewards.scorers.characters import readable
from corerl_rewards.scorers.extraction import final_answer, last_numbers, line_answer, number_after


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{5} then \boxed{7}", "7"),
        (r"\boxed{5}, so it is \boxed{7}", "7"),
        (r"\boxed{5} or \boxed{7}", "5, 7"),
        (r"$\boxed{5}$ and $\boxed{7}$", "5, 7"),
        ("\\boxed{5}\n\n\\boxed{7}", "5, 7"),
        (r"\boxed{5}或\boxed{7}", "5, 7"),
        (r"\boxed{5}. Or \boxed{7}", "5, 7"),
        (r"\boxed{5} + \boxed{7}", "7"),
        (r"\boxed{7} or 5", "7, 5"),
        (r"\boxed{7}\text{ or }5", "7, 5"),
        (r"\boxed{7} (or $5$)", "7, 5"),
        (r"5 or \boxed{7}", "5, 7"),
        (r"$x=5$ or $x=\boxed{7}$", "x=5, 7"),
        (r"\boxed{7} or so", "7, or so"),
        (r"\boxed{7}?", "7, ?"),
        (r"which is $14 - 2$, or \boxed{12}", "12"),  # the same number in other words
        (r"$6^b = 36$, or $b = \boxed{2}$", "2"),
        (r"half of $1$, or \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"so $2x = 110$ or $x=\boxed{55}$", "55"),
        (r"\boxed{7} or equivalently \boxed{ 7 }", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{7} or \boxed{", None),
        ("7", None),
    ],
)
def test_a_box_is_read_with_its_alternatives(response: str, answer: str | None) -> None:
    assert boxed_answer(response) == answer


def test_boxes_alone_are_joined_for_ground_truths() -> None:
    assert joined_boxes(r"5 or \boxed{7} or 8") == "7"
    assert joined_boxes(r"\boxed{-2} and \boxed{1}") == "-2, 1"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Answer: 34", "34"),
        ("Answer: 5\nno\nAnswer: 34", "34"),
        ("Answer:\n\\[\n\\frac12\n\\]", r"\frac12"),
        ("Answer:\n\n$$\n34\n$$\nDone.", "34"),
        ("Answer:\n\\begin{align*}\nx = 34\n\\end{align*}", "x = 34"),
        ("### Final Answer\n\n34", "34"),
        ("答案：34。", "34"),
        ("答案是34，因为", "34"),
        (r"Answer: \(5\) or \(7\)", "5, 7"),
        ("Answer: $5$; $7$", "5, 7"),
        ("Answer: $7$ (or 5)", "7, 5"),
        ("Answer: x = 5 or x = 7", "x = 5 or x = 7"),
        (r"Answer: \boxed{5} or \boxed{7}", "5, 7"),
        ("Answer: .5", ".5"),
        ("Answer: 0.333...", "0.333..."),
        ("Answer: 20 degrees Celsius", "20 degrees Celsius"),
        ("Answer: maybe it is 7", "maybe it is 7"),
        ("Answer: The number of points is 7.", "7"),
        ("Answer:", None),
        ("the answer is 7", None),
    ],
)
def test_the_line_of_an_answer_is_read(response: str, answer: str | None) -> None:
    assert line_answer(readable(response)) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("x = 5 or x = 7", "5, 7"),
        ("It is 5 or 7.", "5, 7"),
        ("5 apples or 7 apples", "5, 7"),
        ("5, 7.", "5, 7"),
        ("In 2020, 45 apples were left", "45"),
        ("There are 12 months. It is 7", "7"),
        ("$5$ or it is $7$", "5, 7"),
        ("about 7", "about 7"),
        ("He has 7 million", "7 million"),
        ("It is 7 or maybe 5", "7, 5"),
    ],
)
def test_without_a_phrase_the_last_numbers_that_are_joined_count(response: str, answer: str) -> None:
    assert final_answer(response) == answer


def test_numbers_of_a_mark_and_the_last_numbers() -> None:
    assert number_after("#### $1,080, in all", "####") == "$1,080"
    assert number_after("#### x = 5", "####") is None
    assert number_after("#### 5 or 7", "####") == "5 or 7"
    assert number_after("5", "####") is None
    assert last_numbers("5 - 3 = 2 and so on") == "2"
    assert last_numbers("none") is None


HOSTILE = [
    *(
        "answer: ",
        "#### ",
        "\\boxed{",
        "\\boxed{}",
        "$",
        "$$",
        "\\[",
        "\\(",
        "or ",
        "5 or ",
        " or",
        "5, ",
        "} ",
        "\\text{ ",
        "答案",
        "x = ",
    ),
    *(
        "```",
        "* ",
        "\\boxed{5} or ",
        "maybe ",
        "5 5 ",
        "- ",
        ". ",
        "$5$ or ",
        "\\boxed{5} } } ",
        "1,",
        "\\begin{align}",
        "and or ",
    ),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_any_response_is_read_in_bounded_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    start = time.process_time()
    for function in (boxed_answer, joined_boxes, final_answer, last_numbers):
        function(text)
        function(f"7 or {piece * 200}\\boxed{{7}} {piece * 200} 7")
    line_answer(text[-4000:])
    number_after(text, "####")
    assert time.process_time() - start < 10
