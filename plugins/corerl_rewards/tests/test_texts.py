"""Scorers of answers that are words."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from corerl_rewards.options import ExactMatchOptions, FuzzyMatchOptions
from corerl_rewards.scorers.exact_match import exact_match
from corerl_rewards.scorers.fuzzy_match import common_length, f1, fuzzy_match, similarity


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("Paris", "Paris", 1.0),
        ("  paris. ", "Paris", 1.0),
        ("I say <answer>The Beatles</answer>!", ["Beatles", "Fab Four"], 1.0),
        ("<answer>London</answer> <answer>Paris</answer>", "Paris", 1.0),  # the last one counts
        ("<answer>Paris</answer> <answer>London</answer>", "Paris", 0.0),
        ("It is Paris", "Paris", 0.0),
        ("Paris", {"target": ["London", "Paris"]}, 1.0),
        ("42", 42, 1.0),
        ("a", "the", 0.0),  # articles that are all there is
        ("", "Paris", 0.0),
    ],
)
def test_exact_match_compares_words(response: str, truth: Any, score: float) -> None:
    assert exact_match(response, truth, "searchR1_nq", {})["score"] == score


def test_exact_match_can_compare_each_character() -> None:
    options = ExactMatchOptions(compare="text")
    assert exact_match(" Paris ", "Paris", "", {}, options) == {"score": 1.0, "extracted": "Paris"}
    assert exact_match("paris", "Paris", "", {}, options)["score"] == 0.0


@pytest.mark.parametrize("scorer", [exact_match, fuzzy_match])
@pytest.mark.parametrize("truth", ["", " ", None, [], ["Paris", ""], {"target": None}, {"answer": "Paris"}])
def test_a_ground_truth_without_an_answer_is_an_error_and_not_a_score(scorer: Callable[..., Any], truth: Any) -> None:
    with pytest.raises(ValueError, match="ground truth is empty"):
        scorer("Paris", truth, "", {})


def longest_common_subsequence(one: str, other: str) -> int:
    """The textbook's table."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for row, left in enumerate(one):
        for column, right in enumerate(other):
            best = max(table[row][column + 1], table[row + 1][column])
            table[row + 1][column + 1] = table[row][column] + 1 if left == right else best
    return table[-1][-1]


def test_the_common_subsequence_is_that_of_the_textbook() -> None:
    draw = random.Random(0)
    for _ in range(300):
        one, other = ("".join(draw.choices("abc", k=draw.randrange(90))) for _ in range(2))
        assert common_length(one, other) == longest_common_subsequence(one, other)


def test_similarity_and_f1_by_hand() -> None:
    assert similarity("colour", "color") == 10 / 11
    assert similarity("color", "colour") == 10 / 11
    assert similarity("", "") == 1.0
    assert f1("red car", "red bicycle") == 0.5
    assert f1("red red car", "red car") == 0.8  # 2 shared of 3 and 2
    assert f1("a", "") == 0.0


def test_the_nearest_accepted_answer_counts_and_below_the_threshold_none() -> None:
    assert fuzzy_match("<answer>color</answer>", ["x", "colour"], "", {}) == {"score": 10 / 11, "extracted": "color"}
    assert fuzzy_match("color", "colour", "", {}, FuzzyMatchOptions(threshold=0.95))["score"] == 0.0
    assert fuzzy_match("red car", "red bicycle", "", {}, FuzzyMatchOptions(method="f1"))["score"] == 0.5


def test_long_texts_are_compared_quickly() -> None:
    start = time.process_time()
    assert common_length("ab" * 10_000, "ba" * 10_000) == 19_999
    assert time.process_time() - start < 10
