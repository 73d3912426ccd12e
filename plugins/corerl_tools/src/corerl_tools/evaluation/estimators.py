r"""Estimates for k responses to a prompt, from n >= k responses.

Each estimate is the mean over all subsets of k of the n responses, in closed form: exact, without sampling or bias.

* ``pass@k``: at least one of the k is correct: 1 - C(n-c, k) / C(n, k), with c correct of n (Chen et al., 2021,
  arXiv 2107.03374, equation 1).
* ``best@k``: the highest of k scores: sum over the scores in ascending order of C(i-1, k-1) / C(n, k) · score_i;
  with scores 0 and 1 it equals pass@k. ``worst@k`` is the lowest.
* ``maj@k``: the score of the most frequent answer among the k (Wang et al., 2022, arXiv 2203.11171); for a tie, the
  mean of the tied scores. A response without an answer has no vote. Answers that the grader calls equal are one.

The error is the standard error over prompts, by the bootstrap (Efron, 1979): prompts are drawn with replacement.

verl draws k of the n *with* replacement, 1000 times. This underestimates best@k, because a response may be drawn twice.
verl's error is the deviation between those draws; it does not measure how other prompts would change the result.
"""

import functools
import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pass_at_k(correct: NDArray[np.bool_], k: int) -> Array:
    """Probability that one of k responses is correct.

    Args:
        correct: (..., n) bool, n >= k.

    Returns:
        (...) float64 in [0, 1].
    """
    n = correct.shape[-1]
    wrong = n - correct.sum(axis=-1, keepdims=True)
    drawn = np.arange(k)
    all_wrong: Array = np.prod(np.maximum(wrong - drawn, 0) / (n - drawn), axis=-1)
    return 1.0 - all_wrong


def best_at_k(scores: Array, k: int) -> Array:
    """Expected highest score of k responses; ``-best_at_k(-scores, k)`` is the expected lowest.

    Args:
        scores: (..., n) float64, n >= k.

    Returns:
        (...) float64.
    """
    n = scores.shape[-1]
    ranks = np.arange(n - 1, 0, -1)
    weights = np.cumprod([k / n, *(np.maximum(ranks - k + 1, 0) / ranks)])[::-1]
    best: Array = np.sort(scores, axis=-1) @ weights
    return best


def majority_at_k(scores: Array, answers: Sequence[Hashable], k: int) -> float:
    """Expected score of the most frequent answer of k responses.

    Args:
        scores: (n,) float64; the score of an answer is the mean over its responses.
        answers: n answers, None for a response without an answer.
    """
    rows: dict[Hashable, list[float]] = {}
    for score, answer in zip(scores.tolist(), answers, strict=True):
        rows.setdefault(answer, []).append(score)
    silent = rows.pop(None, [])
    counts = tuple(sorted(map(len, rows.values())))
    winning = _winning_probabilities(counts, len(silent), k)
    expected = sum(winning[len(of_answer)] * math.fsum(of_answer) / len(of_answer) for of_answer in rows.values())
    if len(silent) >= k:
        expected += math.comb(len(silent), k) / math.comb(len(scores), k) * math.fsum(silent) / len(silent)
    return expected


def bootstrap_error(values: Array, resamples: int = 1000, seed: int = 0) -> float:
    """Standard error of the mean of (P,) values of P prompts; NaN for one prompt, which has no deviation."""
    prompts = len(values)
    if prompts < 2:
        return math.nan
    draws = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
    return float((draws @ values / prompts).std(ddof=1))


@functools.lru_cache(maxsize=4096)
def _winning_probabilities(counts: tuple[int, ...], silent: int, k: int) -> dict[int, float]:
    """Number of votes -> probability that an answer with that many of the n wins among k; t tied answers win 1/t each.

    Args:
        counts: votes of each answer, ascending; ``silent`` further responses have none.

    An answer wins with m votes if no other has more. If each response were drawn independently with probability k/n,
    the votes of the answers would be independent. The condition of exactly k draws divides by the probability of k
    draws. All terms are positive and at most 1, so no term overflows and no difference cancels.
    """
    n = sum(counts) + silent
    if k == n and counts:
        return {count: float(count == counts[-1]) / counts.count(count) for count in counts}
    rate = k / n
    winning = dict.fromkeys(counts, 0.0)
    for count in winning:
        others = list(counts)
        others.remove(count)
        for votes in range(1, min(count, k) + 1):
            by_ties = _not_above(votes, others, silent, k - votes, rate)
            share = float(by_ties @ (1.0 / np.arange(1, len(by_ties) + 1)))
            winning[count] += _binomial(count, rate)[votes] * share / _binomial(n, rate)[k]
    return winning


def _not_above(most: int, counts: Sequence[int], silent: int, drawn: int, rate: float) -> Array:
    """Probability that these answers get at most ``most`` votes each, given ``drawn`` drawn responses in total.

    Returns:
        (ties + 1,) float64, indexed by the number of answers with exactly ``most`` votes.
    """
    if drawn < most:  # too few draws for ``most`` votes
        return _binomial(silent + sum(counts), rate)[drawn : drawn + 1]
    ties = drawn // most
    free = silent + sum(count for count in counts if count < most)  # these answers cannot reach ``most`` votes
    table = np.zeros((ties + 1, drawn + 1))
    table[0, : free + 1] = _binomial(free, rate)[: drawn + 1]
    for count in (count for count in counts if count >= most):
        chance, filled = _binomial(count, rate), np.zeros_like(table)
        for votes in range(min(most, drawn + 1)):
            filled[:, votes:] += chance[votes] * table[:, : drawn + 1 - votes]
        if most <= drawn:
            filled[1:, most:] += chance[most] * table[:-1, : drawn + 1 - most]
        table = filled
    return table[:, drawn]


@functools.lru_cache(maxsize=4096)
def _binomial(count: int, rate: float) -> Array:
    """(count + 1,) float64: the probability of each number of draws among ``count`` responses."""
    drawn = np.arange(count + 1)
    factorials = np.array([math.lgamma(number + 1) for number in drawn.tolist()])
    logs = factorials[-1] - factorials - factorials[::-1] + drawn * math.log(rate) + drawn[::-1] * math.log1p(-rate)
    chances: Array = np.exp(logs)
    return chances
