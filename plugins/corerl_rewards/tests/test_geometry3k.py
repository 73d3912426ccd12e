"""verl's score of geometry3k: 0.9 for the answer, 0.1 for the form."""

import pytest

from corerl_rewards.options import Geometry3kOptions
from corerl_rewards.scorers.geometry3k import geometry3k, well_formed

SOURCE = "hiyouga/geometry3k"


@pytest.mark.parametrize(
    ("response", "accuracy", "form"),
    [
        (r"<think>3 + 4</think> It is \boxed{7}.", 1.0, 1.0),
        (r"<think>3 + 4</think> It is \boxed{8}.", 0.0, 1.0),
        (r"It is \boxed{7}.", 1.0, 0.0),
        ("It is 7.", 0.0, 0.0),
        (r"<think>\boxed{7}</think> It is 7.", 0.0, 0.0),
        (r"Well, <think>3 + 4</think> \boxed{7}", 1.0, 0.0),  # text before
        (r"<think>3 + 4 \boxed{7}", 0.0, 0.0),
    ],
)
def test_accuracy_and_format_are_weighed_nine_to_one(response: str, accuracy: float, form: float) -> None:
    result = geometry3k(response, "7", SOURCE, {})
    assert (result["accuracy"], result["format"]) == (accuracy, form)
    assert result["score"] == pytest.approx(0.9 * accuracy + 0.1 * form, abs=1e-12)


def test_the_weight_of_the_format_is_an_option() -> None:
    result = geometry3k(r"\boxed{7}", "7", SOURCE, {}, Geometry3kOptions(format_weight=0.25))
    assert result["score"] == 0.75


def test_a_prompt_that_ends_in_think_gives_the_form_its_beginning() -> None:
    response = r"3 + 4</think> \boxed{7}"
    assert geometry3k(response, "7", SOURCE, {})["format"] == 0.0
    for options in (Geometry3kOptions(), Geometry3kOptions(reasoning="opened")):
        assert geometry3k(f"<think>\n{response}", "7", SOURCE, {}, options)["score"] == 1.0
    assert geometry3k(response, "7", SOURCE, {}, Geometry3kOptions(reasoning="opened"))["score"] == 1.0


@pytest.mark.parametrize(
    ("response", "yes"),
    [
        (r"<think></think>\boxed{}", True),
        ("<think>a\nb</think>\nc \\boxed{\n}\n", True),
        (r"<think>a</think> \boxed {5}", False),
        (r"<think>a</think> \boxed{5", False),
        (r"</think><think> \boxed{5}", False),
        ("", False),
    ],
)
def test_the_form_is_think_then_a_box(response: str, yes: bool) -> None:
    assert well_formed(response) is yes


def test_an_empty_ground_truth_is_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError, match="ground truth is empty"):
        geometry3k(r"\boxed{7}", " ", SOURCE, {})
