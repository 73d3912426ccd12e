"""Against every subset, one by one, in float64."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest

from corerl_tools.evaluation.estimators import best_at_k, bootstrap_error, majority_at_k, pass_at_k


def over_subsets(rows: list[tuple[float, str | None]], k: int, value: Callable[..., float]) -> float:
    return fmean(value(subset) for subset in combinations(rows, k))


def majority(subset: tuple[tuple[float, str | None], ...]) -> float:
    votes = Counter(answer for _, answer in subset if answer is not None)
    if not votes:
        return fmean(score for score, _ in subset)
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    return fmean(fmean(score for score, answer in subset if answer == winner) for winner in winners)


def draws(number: int) -> list[tuple[list[tuple[float, str | None]], int]]:
    rng = np.random.default_rng(number)
    found = []
    for _ in range(60):
        n = int(rng.integers(1, 10))
        answers = [None if answer == 0 else "abcd"[answer - 1] for answer in rng.integers(0, 5, n)]
        found.append((list(zip(rng.normal(size=n).tolist(), answers, strict=True)), int(rng.integers(1, n + 1))))
    return found


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_response() -> None:
    for rows, k in draws(0):
        expected = over_subsets(rows, k, lambda subset: any(score > 0.5 for score, _ in subset))
        correct = np.array([score > 0.5 for score, _ in rows])
        assert pass_at_k(correct, k) == pytest.approx(expected, abs=1e-14)


def test_pass_at_k_is_the_papers_formula_where_its_binomials_are_far_beyond_a_float() -> None:
    n, c, k = 5000, 3, 700
    exact = 1 - math.comb(n - c, k) / math.comb(n, k)  # of integers
    assert float(pass_at_k(np.arange(n) < c, k)) == pytest.approx(exact, rel=1e-12)


def test_best_and_worst_at_k_are_the_means_over_subsets() -> None:
    for rows, k in draws(1):
        scores = np.array([score for score, _ in rows])
        best = over_subsets(rows, k, lambda subset: max(score for score, _ in subset))
        worst = over_subsets(rows, k, lambda subset: min(score for score, _ in subset))
        assert best_at_k(scores, k) == pytest.approx(best, abs=1e-14)
        assert -best_at_k(-scores, k) == pytest.approx(worst, abs=1e-14)


def test_best_at_k_of_zeros_and_ones_is_pass_at_k() -> None:
    correct = np.random.default_rng(2).random((7, 40)) < 0.2
    for k in (1, 2, 17, 40):
        np.testing.assert_allclose(best_at_k(correct.astype(float), k), pass_at_k(correct, k), atol=1e-14)


def test_majority_at_k_is_the_mean_over_subsets_with_ties_shared_and_silence_without_a_vote() -> None:
    for rows, k in [*draws(3), *draws(4)]:
        scores, answers = np.array([score for score, _ in rows]), [answer for _, answer in rows]
        assert majority_at_k(scores, answers, k) == pytest.approx(over_subsets(rows, k, majority), abs=1e-13)


def test_majority_at_k_of_many_responses_is_what_drawing_them_gives() -> None:
    rng = np.random.default_rng(5)
    answers = [*"a" * 30, *"b" * 25, *"cdefghijk"]
    scores = np.array([float(answer == "a") for answer in answers])
    rows = list(zip(scores.tolist(), answers, strict=True))
    drawn = [majority(tuple(rows[row] for row in rng.choice(64, 16, replace=False))) for _ in range(20000)]
    assert majority_at_k(scores, answers, 16) == pytest.approx(fmean(drawn), abs=4 * np.std(drawn) / 20000**0.5)


def test_the_bootstrap_gives_the_standard_error_of_the_mean() -> None:
    values = np.random.default_rng(6).normal(size=400)
    assert bootstrap_error(values) == pytest.approx(values.std() / 20, rel=0.1)
    assert bootstrap_error(values) == bootstrap_error(values)


def test_one_prompt_has_no_error() -> None:
    assert math.isnan(bootstrap_error(np.array([0.5])))
