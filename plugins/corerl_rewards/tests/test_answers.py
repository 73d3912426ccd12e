"""What of a response is its answer."""

from collections.abc import Callable
from typing import Any

import pytest

from corerl.plugins import load_plugins
from corerl_rewards.answers import ReasoningOptions, answer_part


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Paris", "Paris"),
        ("<think>London?</think>Paris", "Paris"),
        ("London?</think>Paris", "Paris"),  # the template ended in <think>
        ("<think>London?", ""),
        ("<think>London?</think>", ""),
        ("Paris <think>or London?", "Paris "),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>a</think>b<think>c", "b"),
        ("<think>a<think>b</think>c", "c"),
        ("<thinking>a</thinking>b", "<thinking>a</thinking>b"),
        ("", ""),
    ],
)
def test_text_between_think_tags_is_no_answer(response: str, answer: str) -> None:
    assert answer_part(response, ReasoningOptions()) == answer


def test_of_a_prompt_that_ends_in_think_a_response_without_the_end_has_no_answer() -> None:
    opened = ReasoningOptions(reasoning="opened")
    assert answer_part("London? Paris", opened) == ""
    assert answer_part("London?</think>Paris", opened) == "Paris"


def test_tags_can_be_kept_as_text() -> None:
    assert answer_part("<think>a</think>b", ReasoningOptions(reasoning="kept")) == "<think>a</think>b"


SCORED: dict[str, tuple[str, Any]] = {
    "gsm8k": ("#### 7", "7"),
    "arithmetic": ("#### 7", "7"),
    "math": (r"\boxed{7}", "7"),
    "math_verify": ("The answer is 7.", "7"),
    "math_dapo": ("Answer: 7", "7"),
    "geometry3k": (r"\boxed{7}", "7"),
    "multiple_choice": ("Answer: B", "B"),
    "exact_match": ("Paris", "Paris"),
    "fuzzy_match": ("Paris", "Paris"),
    "countdown": ("<answer>3 + 4</answer>", {"numbers": [3, 4], "target": 7}),
}


@pytest.mark.parametrize("name", SCORED)
def test_every_scorer_of_an_answer_reads_it_outside_of_reasoning(name: str) -> None:
    answer, truth = SCORED[name]

    def score(response: str, **options: str) -> float:
        scorer: Callable[..., Any] = load_plugins().registries.scorers.select({"name": name, **options}).load()
        return float(scorer(response, truth, "", {})["score"])

    right = score(answer)
    assert right > 0.5
    assert score(f"<think>Hm.</think>\n{answer}") >= right
    assert score(f"Hm.</think>\n{answer}") == right
    assert score(f"<think>{answer}") < 0.5
    assert score(f"{answer}</think>") < 0.5
    assert score(answer, reasoning="opened") < 0.5
    assert score(f"Hm.</think>\n{answer}", reasoning="opened") >= right
    if name not in ("exact_match", "fuzzy_match"):  # these compare the whole response
        assert score(f"<think>{answer}", reasoning="kept") >= right
