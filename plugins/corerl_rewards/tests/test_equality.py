"""Whether an answer is the ground truth; the table of verdicts has the values, here are the limits."""

import contextlib
import time

import pytest

from corerl_rewards.scorers.equality import equal_answers, readable_truth
from corerl_rewards.scorers.verifier import Budget, Verifier


@pytest.mark.parametrize("truth", ["", " ", None, "\u200b"])
def test_an_empty_ground_truth_is_an_error_and_no_score(truth: str | None) -> None:
    with pytest.raises(ValueError, match="ground truth is empty"):
        readable_truth(truth)


def test_a_ground_truth_is_read_in_one_spelling() -> None:
    assert readable_truth("３４") == "34"


SLOW = r"\prod_{k=1}^{10000000} k"


def test_all_comparisons_of_one_answer_share_one_budget() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"longer than 0.5 s"):
        equal_answers(", ".join(f"{SLOW} + {number}" for number in range(20)), "5, 6", 0.5)
    assert time.monotonic() - start < 10


def test_a_budget_is_used_up_by_comparisons() -> None:
    verifier, budget = Verifier(), Budget(10.0)
    assert verifier.equal(r"(x+1)^2", "x^2+2x+1", budget)
    assert 0 < budget.used < 10
    budget.used = 10.0
    with pytest.raises(TimeoutError, match="longer than 10 s"):
        verifier.equal("2", "1+1", budget)
    verifier.close()


NESTED = [
    r"\frac{1}{" * 60 + "2" + "}" * 60,
    "(" * 300 + "1" + ")" * 300,
    r"\sqrt{" * 80 + "2" + "}" * 80,
    "{" * 400 + "}" * 400,
]
HOSTILE = [
    *(
        "10**10**10",
        "10^10^10^10",
        "9^{9^{9^{9}}}",
        "1e999999999",
        "1E-999999",
        "((((((((((2!)!)!)!)!)!)!)!)!)!)",
        "2^{-2^{2^{2^{2^{2}}}}}",
    ),
    *(
        "1/" * 400 + "1",
        "1," * 450,
        "x_1," * 200,
        "1 or " * 190,
        "a" * 950,
        "1" * 950,
        "." * 950,
        r"\text{" * 150,
        "\\" * 900,
        "$" * 900,
    ),
    *(
        "5 cm " * 180,
        "5 m/s^2 " * 110,
        "1.234." * 150,
        r"\pm 1 " * 150,
        r"\{1\}" * 150,
        "(1,2]" * 150,
        "x=1=" * 200,
        "0.(3)" * 180,
    ),
    *(
        "m/" * 400,
        "^2" * 400,
        r"\frac" * 180,
        "1'000" * 180,
        "3 hours " * 110,
        r"\mathbf{" * 110,
        "≈1" * 400,
        "A) " * 300,
        r"\begin{" * 100,
    ),
]


@pytest.mark.parametrize("answer", [pytest.param(answer, id=answer[:12]) for answer in NESTED + HOSTILE])
@pytest.mark.parametrize("truth", ["5", r"\sqrt{3}", "1, 2"])
def test_any_answer_is_compared_in_bounded_time(answer: str, truth: str) -> None:
    start = time.monotonic()
    with contextlib.suppress(TimeoutError, RuntimeError):  # an error of the sample, not a score
        assert not equal_answers(answer, truth, 2.0)
    assert time.monotonic() - start < 20
