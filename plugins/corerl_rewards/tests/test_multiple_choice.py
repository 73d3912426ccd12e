import pytest

from corerl_rewards.options import MultipleChoiceOptions
from corerl_rewards.scorers.multiple_choice import chosen, multiple_choice


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("The answer is (B).", "B"),
        ("Answer: B", "B"),
        ("**Answer:** (B)", "B"),
        ("Answer: **B**", "B"),
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(B) } 12}", "B"),
        (r"So the answer is $\textbf{(D)}\ 12$.", "D"),
        ("<answer>B</answer>", "B"),
        ("B", "B"),
        ("B. Paris", "B"),
        ("Let us see.\nB) Paris", "B"),
        ("Option A is wrong.\nThe correct option is C.", "C"),
        ("Answer: A\nAnswer: C", "C"),
        (r"Answer: A. No, \boxed{C}", "C"),
        ("\\boxed{A} at first.\n#### B", "B"),
        ("#### A\nNo: \\boxed{B}", "B"),
        ("<answer>A</answer> No, the answer is B.", "B"),
        (r"\boxed{B} Option A is wrong.", "B"),
        (r"<answer>A</answer> \boxed{B}", "B"),
        (r"\boxed{A} <answer>B</answer>", "B"),
        ("#### A or B", None),
        ("The answer is A or B.", None),
        ("<answer>A, B</answer>", None),
        ("A bicycle", None),  # an article
        ("I do not know", None),
        ("The answer is a dog", None),
        ("The answer is Apple", None),
        (r"\boxed{", None),
        ("b", "B"),
        ("Answer: A, I think", "A"),
        ("The answer is A, not B.", "A"),
        ("Answer: A, because B is wrong", "A"),
        ("Answer: B and a bit more", "B"),
        (r"\boxed{A} or \boxed{B}", None),
        ("", None),
    ],
)
def test_the_letter_that_a_response_settles_on(response: str, letter: str | None) -> None:
    assert chosen(response, "ABCDEFGHIJ") == letter


@pytest.mark.parametrize(("truth", "score"), [("B", 1.0), ("(B)", 1.0), ("b", 1.0), ("A", 0.0)])
def test_the_letter_is_compared_with_the_ground_truth(truth: str, score: float) -> None:
    assert multiple_choice("Answer: B", truth, "cais/mmlu", {}) == {"score": score, "extracted": "B"}


def test_only_the_letters_of_the_options_can_be_chosen() -> None:
    options = MultipleChoiceOptions(letters="AB")
    assert multiple_choice("Answer: C", "B", "", {}, options) == {"score": 0.0, "extracted": None}


@pytest.mark.parametrize("truth", ["Paris", "", None, 2, "K"])
def test_a_ground_truth_that_is_no_letter_is_an_error_and_not_a_score(truth: object) -> None:
    with pytest.raises(ValueError, match="none of the letters"):
        multiple_choice("Answer: B", truth, "", {})


def test_letters_are_capital_letters() -> None:
    with pytest.raises(ValueError, match="letters must be"):
        MultipleChoiceOptions(letters="A-D")
