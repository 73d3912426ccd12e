import json
from pathlib import Path

import pytest

from corerl_rewards.options import Gsm8kOptions
from corerl_rewards.scorers.gsm8k import gsm8k

DATA = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("16 - 3 - 4 = 9, 9 * 2 = 18\n#### 18", "18", 1.0),
        ("####18", "18", 1.0),
        ("#### 18.0", "18", 1.0),
        ("#### $1,080.", "1080", 1.0),
        ("#### 1080", "1,080", 1.0),
        ("#### -3", "-3", 1.0),
        ("#### −3", "-3", 1.0),
        ("#### 3", "-3", 0.0),
        ("#### 5\n#### 18", "18", 1.0),  # the last one counts
        ("#### 18\n#### 5", "18", 0.0),
        ("#### 18\n####", "18", 0.0),
        ("The answer is 18", "18", 0.0),  # no mark
        ("18 ####", "18", 0.0),  # in the wrong place
        ("#### 18 + 0", "18", 0.0),
        ("#### 180", "18", 0.0),
        ("#### 18.5", "18", 0.0),
        ("#### " + "9" * 100_000, "18", 0.0),
        ("", "18", 0.0),
    ],
)
def test_strict_reads_the_number_after_the_last_mark(response: str, truth: str, score: float) -> None:
    assert gsm8k(response, truth, "openai/gsm8k", {})["score"] == score


@pytest.mark.parametrize(
    ("response", "score"), [("It is 18.", 1.0), ("18, not 19", 0.0), ("#### 18", 1.0), ("eighteen", 0.0)]
)
def test_flexible_reads_the_last_number(response: str, score: float) -> None:
    assert gsm8k(response, "18", "openai/gsm8k", {}, Gsm8kOptions(method="flexible"))["score"] == score


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("#### 18", 1.0),
        (r"so \boxed{18}, after 2 steps", 1.0),
        ("so it is 18.", 1.0),
        (r"Answer 17, no: \boxed{18} in 3 steps", 1.0),
        ("\\boxed{17}\n#### 18", 1.0),
        ("#### 18\nDone in 3 steps", 1.0),
        ("#### Step 2: add\n16 + 2 = 18", 1.0),  # a heading
        ("#### 2. Add\n16 + 2 = 18", 1.0),
        ("##### Answer\n\\boxed{36/2}", 1.0),
        (r"\boxed{17}, and 18", 0.0),
        ("18\n#### 17", 0.0),
        (r"\boxed{18} or \boxed{17}", 0.0),
        ("18 or 17", 0.0),
        ("#### 17 or 18", 0.0),
        ("#### not 18", 0.0),
        ("18\n####", 0.0),
        (r"\boxed{18", 0.0),
        (r"\boxed{}, that is 18", 0.0),
        ("none", 0.0),
    ],
)
def test_fallback_reads_the_mark_else_the_box_else_the_last_number(response: str, score: float) -> None:
    assert gsm8k(response, "18", "openai/gsm8k", {}, Gsm8kOptions(method="fallback"))["score"] == score


def test_what_was_compared_is_returned_as_written() -> None:
    assert gsm8k("#### $1,080", "1080", "", {}) == {"score": 1.0, "extracted": "$1,080"}
    assert gsm8k("no idea", "1080", "", {}) == {"score": 0.0, "extracted": None}


def test_a_ground_truth_that_is_no_number_is_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError, match="'n/a' is not a number"):
        gsm8k("#### 5", "n/a", "openai/gsm8k", {})


@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_every_worked_answer_of_gsm8k_scores_1(split: str, rows: int, method: str) -> None:
    file = DATA / f"{split}.jsonl"
    if not file.is_file():
        pytest.skip("GSM8K is not beside the repository, in ../shared/data/gsm8k")
    answers = [json.loads(line)["answer"] for line in file.read_text().splitlines()]
    options = Gsm8kOptions(method=method)  # type: ignore[arg-type]
    scores = [gsm8k(answer, answer.split("#### ")[1], "", {}, options)["score"] for answer in answers]
    assert scores == [1.0] * rows
