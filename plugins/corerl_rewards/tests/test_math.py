r"""The scorer for ``\boxed{}``; expected values are mathematics, checked by hand."""

import itertools
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corerl_rewards.options import MathOptions
from corerl_rewards.scorers.alternatives import joined_boxes
from corerl_rewards.scorers.boxed import boxes, last_boxed, normalise
from corerl_rewards.scorers.math import math
from corerl_rewards.scorers.verifier import Budget, Verifier

DATA = Path(__file__).parents[4] / "shared" / "data" / "math"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so $\boxed{42}$.", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\fbox{3}", "3"),
        (r"\boxed {4}", "4"),
        (r"$\boxed 5$", "5"),
        (r"it is \boxed 5.", "5"),
        (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{6}}", "6"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),  # one escaped brace, alone
        (r"\boxed{a \\}", r"a \\"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{8", None),  # cut off
        (r"\boxed{1} and \boxed{8", None),
        (r"\boxed", None),
        (r"\boxedtext{9}", None),
        ("boxed{9}", None),
        ("", None),
    ],
)
def test_the_last_box_is_read_with_balanced_braces(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_all_boxes_are_listed_in_order() -> None:
    assert boxes(r"\boxed{a}, \fbox{b{c}}, \boxed{d") == ["a", "b{c}", None]


def test_a_response_full_of_open_boxes_is_read_in_linear_time() -> None:
    start = time.process_time()
    assert last_boxed(r"\boxed{" * 50_000) is None
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\left( 3, \dfrac 12 \right)", r"(3,\frac{1}{2})"),
        (r"10\sqrt 2", r"10\sqrt{2}"),
        (r"45^\circ", "45"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"\$12.", "12"),
        (r"1 \\ 2", r"1\\2"),  # a new row of a matrix is no spacing command
    ],
)
def test_dress_does_not_count(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


def test_left_and_right_are_not_taken_out_of_longer_commands() -> None:
    assert normalise(r"\leftarrow") == r"\leftarrow"


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        ("42", "42", 1.0),
        ("42.0", "42", 1.0),
        ("1,000", "1000", 1.0),
        ("43", "42", 0.0),
        ("0.5", r"\frac{1}{2}", 1.0),
        (r"\sqrt{12}", r"2\sqrt{3}", 1.0),
        ("x^2+2x+1", "(x+1)^2", 1.0),
        ("7, 5, 3", "3,5,7", 1.0),
        ("(2,1)", "(1,2)", 0.0),
        ("x=5", "5", 1.0),
        ("A", r"\text{(A)}", 1.0),
        ("50", r"50\%", 1.0),
        ("0.33", r"\frac{1}{3}", 0.0),
        (r"2\text{ or }3", "2", 0.0),
        (r"\frac{6", "6", 0.0),
        ("", "6", 0.0),
        ("1" * 5000, "x", 0.0),
    ],
)
def test_equal_means_equal_mathematics(answer: str, truth: str, score: float) -> None:
    assert math(rf"thus \boxed{{{answer}}}", truth, "lighteval/MATH", {})["score"] == score


def test_the_right_answer_outside_a_box_scores_0() -> None:
    assert math("the answer is 42", "42", "lighteval/MATH", {}) == {"score": 0.0, "extracted": None}


def test_an_empty_ground_truth_is_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError, match="ground truth is empty"):
        math(r"\boxed{}", " ", "lighteval/MATH", {})


def test_a_comparison_that_never_ends_is_ended_at_its_timeout() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"longer than 0.5 s"):
        math(r"\boxed{\prod_{k=1}^{10000000} k}", "5", "lighteval/MATH", {}, MathOptions(timeout=0.5))
    assert time.monotonic() - start < 10
    assert math(r"\boxed{1+1}", "2", "lighteval/MATH", {})["score"] == 1.0  # the next one is served


def test_a_formula_that_would_take_hours_to_simplify_is_refuted_at_a_point() -> None:
    start = time.monotonic()
    assert math(r"\boxed{(a+b+c+d+f)^{90}-(a+b+c+d-f)^{90}}", "5", "lighteval/MATH", {})["score"] == 0.0
    assert time.monotonic() - start < 10


def test_several_threads_get_their_own_answers() -> None:
    def score(number: int) -> float:
        return float(math(rf"\boxed{{{number}+1}}", f"{number + 1 + number % 2}", "", {})["score"])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(score, range(20))) == [1.0, 0.0] * 10


def test_a_worker_that_was_killed_is_an_error_and_the_next_call_works() -> None:
    verifier = Verifier()
    assert verifier.equal("2", "1+1", Budget(10.0))
    verifier._idle[0].kill()
    verifier._idle[0].wait()
    with pytest.raises(RuntimeError, match="ended with code -9"):
        verifier.equal("2", "1+1", Budget(10.0))
    assert verifier.equal("2", "1+1", Budget(10.0))
    verifier.close()


def test_only_the_math_scorer_needs_math_verify() -> None:
    program = (
        "import sys; sys.modules['math_verify'] = None\n"
        "from corerl.plugins import load_plugins\n"
        "registries = load_plugins().registries\n"
        "for name in ('gsm8k', 'arithmetic', 'countdown'): registries.scorers.get(name).load()\n"
        "registries.dataset_preparers.get('math').load()\n"
        "try: registries.scorers.get('math').load()\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "PluginError"


@pytest.mark.parametrize("form", [r"\boxed{{{}}}", r"\boxed{{x = {}}}", r"\fbox{{{}}} or $\boxed{{{}}}$."])
@pytest.mark.parametrize(("name", "rows"), [("test", 5000), ("math500", 500)])
def test_every_ground_truth_of_math_equals_itself(name: str, rows: int, form: str) -> None:
    truths = [record.get("answer") or joined_boxes(record["solution"]) for record in records(name)]
    named = "x =" in form
    several = [truth for truth in truths if not (named and ("\\text" in truth or set("=<>,&[") & set(truth)))]
    assert len(several) > rows * 0.8
    assert [truth for truth in several if math(form.format(*[truth] * 2), truth, "", {})["score"] != 1.0] == []


def test_no_ground_truth_of_math_equals_that_of_the_next_row() -> None:
    truths = [str(joined_boxes(record["solution"])) for record in records("test")]
    pairs = [pair for pair in itertools.pairwise(truths[:1500]) if pair[0].strip() != pair[1].strip()]
    assert [pair for pair in pairs if math(rf"\boxed{{{pair[1]}}}", pair[0], "", {})["score"]] == []


@pytest.mark.parametrize(("name", "rows"), [("test", 5000), ("math500", 500)])
def test_every_solution_of_math_scores_1(name: str, rows: int) -> None:
    truths = [record.get("answer") or joined_boxes(record["solution"]) for record in records(name)]
    scores = [
        math(record["solution"], truth, "lighteval/MATH", {})["score"]
        for record, truth in zip(records(name), truths, strict=True)
    ]
    assert scores == [1.0] * rows


def records(name: str) -> list[dict[str, Any]]:
    file = DATA / f"{name}.jsonl"
    if not file.is_file():
        pytest.skip("MATH is not beside the repository, in ../shared/data/math")
    return [json.loads(line) for line in file.read_text().splitlines()]
