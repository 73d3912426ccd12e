import pytest

from corerl_rewards.options import FormatOptions, LengthOptions
from corerl_rewards.scorers.format import format as form
from corerl_rewards.scorers.length import length


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<think>6·7</think><answer>42</answer>", 1.0),
        ("\n<think>\n6·7\n</think>\n\n<answer>\n42\n</answer>\n", 1.0),
        ("<think>a < b and b > c</think><answer>42</answer>", 1.0),
        ("<think>6·7</think>so<answer>42</answer>", 0.0),
        ("Well, <think>6·7</think><answer>42</answer>", 0.0),
        ("<think>6·7</think><answer>42</answer> or so", 0.0),
        ("<think> </think><answer>42</answer>", 0.0),
        ("<think>6·7</think><answer> </answer>", 0.0),
        ("<think>6·7<answer>42</answer></think>", 0.0),
        ("<answer>42</answer><think>6·7</think>", 0.0),
        ("<think>a</think><think>b</think><answer>42</answer>", 0.0),
        ("<think>6·7</think><answer>42", 0.0),
        ("<Think>6·7</Think><answer>42</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_thought_and_answer_frame_the_response(response: str, score: float) -> None:
    assert form(response, None, "", {})["score"] == score


@pytest.mark.parametrize(
    ("response", "score"),
    [("<think>6·7</think> 42", 1.0), ("<think>6·7</think> ", 0.0), ("a<think>6·7</think> 42", 0.0), ("42", 0.0)],
)
def test_with_think_alone_text_follows(response: str, score: float) -> None:
    assert form(response, None, "", {}, FormatOptions(tags="think"))["score"] == score


@pytest.mark.parametrize(
    ("response", "score"), [("so <answer>42</answer>", 1.0), ("<answer>42</answer>.", 0.0), ("<answer></answer>", 0.0)]
)
def test_with_answer_alone_the_response_ends_in_it(response: str, score: float) -> None:
    assert form(response, None, "", {}, FormatOptions(tags="answer"))["score"] == score


def test_a_thought_that_the_prompt_has_opened_need_not_be_opened_again() -> None:
    """The tag of the prompt begins the response in a run, and is missing in files of others."""
    options = FormatOptions(think_opened=True)
    for begun, score in (("", 1.0), ("<think>", 1.0), ("<think>\n", 1.0), ("<think>\n<think>", 0.0)):
        assert form(f"{begun}6·7</think><answer>42</answer>", None, "", {}, options)["score"] == score


def test_the_tags_that_were_found_are_shown() -> None:
    assert form("<think>6·7</think> 42", None, "", {})["extracted"] == "<think></think>"
    assert len(form("<think>" * 10_000, None, "", {})["extracted"]) < 100


@pytest.mark.parametrize(
    ("characters", "score"), [(0, 1.0), (100, 1.0), (150, 0.5), (175, 0.25), (200, 0.0), (999, 0.0)]
)
def test_the_score_falls_in_a_straight_line_with_the_length(characters: int, score: float) -> None:
    assert length("x" * characters, None, "", {}, LengthOptions(free=100, longest=200)) == score


def test_the_line_must_fall() -> None:
    with pytest.raises(ValueError, match="free"):
        LengthOptions(free=200, longest=200)
