import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from corerl_rewards.options import CountdownOptions
from corerl_rewards.scorers.countdown import countdown

TRUTH = {"numbers": [44, 19, 35], "target": 98}
DATA = Path(__file__).parents[4] / "shared" / "data" / "countdown"


def score(answer: str, truth: dict[str, Any] = TRUTH) -> float:
    return float(countdown(f"<think>hm</think> <answer>{answer}</answer>", truth, "countdown", {})["score"])


@pytest.mark.parametrize("answer", ["44+19+35", " (35 + 44)\n + 19 ", "44 - (-19 - 35)", "((44))+19+35"])
def test_an_expression_that_reaches_the_target_scores_1(answer: str) -> None:
    assert score(answer) == 1.0


def test_division_is_exact() -> None:
    assert score("1/3 + 2/3", {"numbers": [1, 3, 2, 3], "target": 1}) == 1.0
    assert score("(1/49)*49", {"numbers": [1, 49, 49], "target": 1}) == 1.0  # as floats: 0.9999999999999999
    assert score("7/2", {"numbers": [7, 2], "target": 3}) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "44+19",  # a number unused
        "44+19+35+35-35",  # one used twice
        "98",
        "44+19+35=98",
        "44+19-35",
        "44+(19+35",
        "44/(19-19)+35",
        "44 + 19 + 3 5",
        "44 + 19 + 0x23",
        "44 + 19 + 35.0",
        "44+19+35 # done",
        "44 ** 19 + 35",
        "44 // 19 + 35",
        "9**9**9**9",
        "__import__('os').getpid()",
        "sum([44, 19, 35])",
        "44(19)35",
        "",
    ],
)
def test_anything_else_scores_0(answer: str) -> None:
    assert score(answer) == 0.0


@pytest.mark.parametrize(
    "answer",
    ["9**9**9", "(" * 100_000, "-" * 400 + "1", "1+" * 100_000 + "1", "9" * 100_000, "(" * 240 + "1" + ")" * 240],
)
def test_hostile_expressions_end_at_once(answer: str) -> None:
    start = time.process_time()
    assert score(answer) == 0.0
    assert time.process_time() - start < 1


def test_division_by_zero_is_a_wrong_answer() -> None:
    assert score("5/(3-3)", {"numbers": [5, 3, 3], "target": 5}) == 0.0


def test_the_last_answer_counts() -> None:
    tagged = "<answer>44+19+35</answer> or <answer>44+19-35</answer>"
    assert countdown(tagged, TRUTH, "countdown", {}) == {"score": 0.0, "extracted": "44+19-35"}
    assert countdown("44+19+35", TRUTH, "countdown", {}) == {"score": 0.0, "extracted": None}
    assert countdown("<answer>44+19+35", TRUTH, "countdown", {})["extracted"] is None


def test_a_wrong_answer_between_tags_scores_format_score() -> None:
    options = CountdownOptions(format_score=0.1)
    assert countdown("<answer>44+19-35</answer>", TRUTH, "countdown", {}, options)["score"] == 0.1
    assert countdown("<answer>no</answer>", TRUTH, "countdown", {}, options)["score"] == 0.1
    assert countdown("no", TRUTH, "countdown", {}, options)["score"] == 0.0
    assert countdown("<answer>44+19+35</answer>", TRUTH, "countdown", {}, options)["score"] == 1.0


def test_a_ground_truth_without_numbers_is_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError):
        countdown("<answer>1</answer>", {"target": 1}, "countdown", {})


def test_the_example_of_the_prompt_scores_on_a_row_of_tinyzero() -> None:
    file = DATA / "tinyzero_train.parquet"
    if not file.is_file():
        pytest.skip("TinyZero's Countdown is not beside the repository, in ../shared/data/countdown")
    truth = pq.read_table(file).slice(0, 1).to_pylist()[0]["reward_model"]["ground_truth"]
    assert score("44 + 19 + 35", truth) == 1.0


def test_numbers_and_target_are_read_exactly() -> None:
    """Truths of 5.5 are not cut to 5."""
    truth = {"numbers": [11, 2], "target": 5.5}
    assert score("11 / 2", truth) == 1.0
    assert score("5", {"numbers": [5], "target": 5.5}) == 0.0
    assert score("2.5 * 2", {"numbers": [2.5, 2], "target": "5"}) == 1.0
    assert score("2 * 2", {"numbers": [2.5, 2], "target": 4}) == 0.0
    assert score("1/10 + 2/10", {"numbers": [1, 10, 2, 10], "target": 0.3}) == 1.0


@pytest.mark.parametrize("answer", ["（44＋19）＋35", "44+19+３５", "44 + 19 + \u200b35"])
def test_signs_of_other_keyboards_are_read(answer: str) -> None:
    assert score(answer) == 1.0


def test_times_and_divided_by_are_signs() -> None:
    assert score("6 × 4 ÷ 2", {"numbers": [6, 4, 2], "target": 12}) == 1.0


@pytest.mark.parametrize("number", [True, "x", None, float("nan"), float("inf")])
def test_a_ground_truth_that_is_no_number_is_an_error(number: Any) -> None:
    with pytest.raises(ValueError, match="ground truth must be"):
        score("1", {"numbers": [1], "target": number})
