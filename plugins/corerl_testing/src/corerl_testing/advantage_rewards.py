"""Checks of an advantage estimator's relations to the reward, the critic's values and the greedy baseline."""

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageEstimator, AdvantageInputs, Advantages
from corerl.registry import Entry
from corerl_testing.advantage_examples import (
    compared,
    emptied,
    example,
    first,
    last,
    random_scores,
    scored,
    with_masked_tokens,
)
from corerl_testing.results import CheckSkipped
from corerl_testing.tensors import expect, expect_equal, expect_finite, spread_out

Estimate = Callable[[AdvantageInputs], Advantages]
AnyEntry = Entry[AdvantageEstimator]

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
RISE = 1e-3
FALL = 0.01
"""share of the whole rise by which an advantage may fall: deviations of the group change with the score, too"""
"""least rise of an advantage when the score rises from 0.1 to 0.9"""

INEXACT = (0.7, 0.1, 1 / 3)
"""scores without an exact float: the mean of equal ones may differ from them by rounding"""

ROUNDING = 0.01
"""largest advantage that rounding may cause"""


def _of_row(estimate: Estimate, inputs: AdvantageInputs, row: int) -> Tensor:
    """(n,) the advantages at the row's trained tokens."""
    return estimate(inputs).advantages[row][inputs.response_mask[row]]


def _with(scores: Tensor, row: int, score: float) -> Tensor:
    return torch.where(torch.arange(len(scores)) == row, score, scores)


def raised_score(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """Also for rows with holes in their masks."""
    expect_rises(estimate, inputs, compared(entry, inputs))


def expect_rises(estimate: Estimate, inputs: AdvantageInputs, rows: list[int]) -> None:
    """Raise CheckFailed if a row's mean advantage falls with its score, or is not larger at 0.9 than at 0.1."""
    others = random_scores(inputs, 11)
    for row in rows:
        means = [float(_of_row(estimate, scored(inputs, _with(others, row, level)), row).mean()) for level in LEVELS]
        allowed = max(1e-5 * max(1.0, *map(abs, means)), FALL * (means[-1] - means[0]))
        for step, (before, after) in enumerate(itertools.pairwise(means)):
            expect(
                after >= before - allowed,
                f"a response's advantage falls from {before:.4g} to {after:.4g} when its score rises from "
                f"{LEVELS[step]:g} to {LEVELS[step + 1]:g}",
            )
        expect(
            means[-1] >= means[0] + RISE,
            f"a response has the advantage {means[0]:.4g} with the score 0.1 and {means[-1]:.4g} with 0.9: the score, "
            "which stands at the last trained token and in the components, is not read",
        )


def raised_component(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A row's mean advantage never falls with a component of its score."""
    row = compared(entry, inputs)[0]
    base = scored(inputs, random_scores(inputs, 12))
    for name in inputs.components:
        low, high = (
            dataclasses.replace(base, components={**base.components, name: _with(base.components[name], row, level)})
            for level in (0.1, 0.9)
        )
        before, after = (float(_of_row(estimate, each, row).mean()) for each in (low, high))
        expect(
            after >= before - 1e-5,
            f"a response's advantage falls from {before:.4g} to {after:.4g} when its component '{name}' rises from 0.1 "
            "to 0.9",
        )


def _effect(estimate: Estimate, inputs: AdvantageInputs, row: int, places: Tensor) -> Tensor:
    """(n,) rise of the row's advantages with a reward of 0.9 instead of 0.1 at one of its tokens."""
    scores = random_scores(inputs, 13)
    here = torch.where((torch.arange(len(scores)) == row)[:, None], places, last(inputs.response_mask))
    base = scored(inputs, scores)
    low, high = (
        dataclasses.replace(base, rewards=scored(inputs, _with(scores, row, level), here).rewards)
        for level in (0.1, 0.9)
    )
    return _of_row(estimate, high, row) - _of_row(estimate, low, row)


def _reads_rewards(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> bool:
    """Whether token rewards have an effect; an estimator may use only the components."""
    row = compared(entry, inputs)[0]
    return bool(_effect(estimate, inputs, row, last(inputs.response_mask)).abs().max() > RISE)


def reward_at_any_token(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A reward at the first token (such as a KL penalty) has an effect there."""
    if not _reads_rewards(entry, estimate, inputs):
        return
    for row in compared(entry, inputs):
        rise = float(_effect(estimate, inputs, row, first(inputs.response_mask))[0])
        expect(
            rise >= RISE,
            f"with a reward of 0.9 instead of 0.1 at a response's first token the advantage there rises by {rise:.3g}: "
            "rewards before the last token, such as a KL penalty, are not read",
        )


def credit_flows_back(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A token gets credit for later rewards; with credit for earlier ones, as with one number a row, for both."""
    if not _reads_rewards(entry, estimate, inputs):
        return
    mask = inputs.response_mask
    for row in (row for row in compared(entry, inputs) if int(mask[row].sum()) > 1):
        early, late = _effect(estimate, inputs, row, first(mask)), _effect(estimate, inputs, row, last(mask))
        forwards = early[-1] > 0.05 * early[0].abs()
        expect(
            not forwards or late[0] > 0.05 * late[-1].abs(),
            "a reward at the first token raises the advantage of the last one, and a reward at the last token does not "
            "raise that of the first: returns are summed from the wrong end",
        )


def no_advantage_from_rounding(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """Equal scores in the batch, or in one group: advantages as for the scores 0 and 1, for any score."""
    if "critic" in entry.needs or "greedy_baseline" in entry.needs:
        raise CheckSkipped("values or greedy scores spread its advantages, so no deviation is rounding alone")
    sizes = torch.tensor([2, 3, 5, 6, 7, 11, 33])
    groups = tuple(torch.arange(len(sizes)).repeat_interleave(sizes).tolist())
    inputs = example(entry, inputs.rewards.dtype, groups=groups)
    scores = random_scores(inputs, 14)
    for group in (None, *range(len(sizes))):
        rows = torch.ones(len(scores), dtype=torch.bool) if group is None else inputs.group_ids == group

        def largest(score: float, rows: Tensor = rows) -> float:
            given = scored(inputs, torch.where(rows, score, scores))
            output = estimate(given)
            expect_finite(f"with the score {score:.3g} for a whole group the advantages", output.advantages)
            return float(output.advantages[rows].abs().max())

        most = max(largest(0.0), largest(1.0)) + ROUNDING
        for score in INEXACT:
            found = largest(score)
            expect(
                found <= most,
                f"where all {int(rows.sum())} scores of a group are {score:.3g} an advantage is {found:.3g}: a "
                "deviation that is rounding is divided by; compute it in float64, or divide by more",
            )


def invariant_to_masked_tokens(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """Masked tokens change nothing: whole columns in the middle, and tokens at other positions in each row."""
    want = estimate(inputs)
    for what, places in spread_out(inputs.response_mask).items():
        output = estimate(with_masked_tokens(inputs, places))
        for name, got in output._asdict().items():
            expect_equal(
                f"the {name}",
                got.gather(1, places),
                getattr(want, name),
                f"with masked tokens {what} between the others",
            )


def uses_log_probs(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A declared need has an effect, because it is computed for every token of a run."""
    assert inputs.log_probs is not None
    other = dataclasses.replace(inputs, log_probs=inputs.log_probs * 2)
    same = torch.equal(estimate(other).advantages, estimate(inputs).advantages)
    expect(not same, "it declares the need of log_probs, and no advantage depends on log_probs")


def uses_sum_pi_squared(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A declared need has an effect, because it is computed for every token of a run."""
    assert inputs.sum_pi_squared is not None
    other = dataclasses.replace(inputs, sum_pi_squared=(inputs.sum_pi_squared * 0.3).clone())
    same = torch.equal(estimate(other).advantages, estimate(inputs).advantages)
    expect(not same, "it declares the need of sum_pi_squared, and no advantage depends on sum_pi_squared")


def greedy_score_lowers(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A better greedy response lowers the advantages of its own prompt's responses."""
    assert inputs.greedy_scores is not None
    for group in range(int(inputs.group_ids.max()) + 1):
        own = inputs.group_ids == group
        better = dataclasses.replace(inputs, greedy_scores=inputs.greedy_scores + 0.5 * own)
        change = estimate(better).advantages - estimate(inputs).advantages
        of_own, of_others = change[own][inputs.response_mask[own]], change[~own][inputs.response_mask[~own]]
        fall = float(of_others.mean() - of_own.mean())
        expect(
            fall >= RISE and bool((of_own <= -RISE).all()),
            f"when the greedy response of a prompt scores 0.5 more, the advantages of its responses "
            f"change by {float(of_own.mean()):.3g}, others by {float(of_others.mean()):.3g}: its own must fall",
        )


def value_lowers(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A higher value of a token's state lowers the token's advantage."""
    assert inputs.values is not None
    base = estimate(inputs).advantages
    for row, column in inputs.response_mask.nonzero()[::5].tolist():
        values = inputs.values.clone()
        values[row, column] += 1
        change = float((estimate(dataclasses.replace(inputs, values=values)).advantages - base)[row, column])
        expect(
            change <= -RISE,
            f"when the value at a token rises by 1 the advantage there changes by {change:.3g}: it must fall",
        )


def returns_are_isolated(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """The returns of a row depend only on that row's rewards and values."""
    rows = len(inputs.rewards)
    want = estimate(inputs).returns
    for row in (0, rows - 1):
        others = torch.arange(rows) != row
        alone = estimate(emptied(inputs, others)).returns[row]
        expect_equal("the returns of a response", alone, want[row], "with the responses that stand beside it")


def last_return(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """The return of the last token is its reward, for any discount."""
    at = last(inputs.response_mask) & inputs.response_mask
    expect_equal(
        "the returns at the last tokens",
        estimate(inputs).returns[at],
        inputs.rewards[at],
        "from the rewards there: after the last token no value and no reward follows",
    )


def returns_look_ahead(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """No return depends on earlier rewards; with all values 1 and all scores 1, returns are powers of gamma."""
    assert inputs.values is not None
    mask = inputs.response_mask
    base = scored(inputs, random_scores(inputs, 16))
    early = dataclasses.replace(base, rewards=base.rewards + 0.5 * (first(mask) & mask))
    later = mask & ~first(mask)
    expect_equal(
        "the returns",
        estimate(early).returns[later],
        estimate(base).returns[later],
        "with rewards of tokens before them",
    )
    sure = dataclasses.replace(scored(inputs, torch.ones(len(mask))), values=mask.to(inputs.values.dtype))
    returns = estimate(sure).returns
    for row in range(len(mask)):
        powers = returns[row][mask[row]]
        rising = bool((powers.diff() >= -1e-5).all()) and bool((powers >= -1e-5).all())
        expect(
            rising,
            "where every value is 1 and the score is 1 the returns of a response do not rise towards 1 at the last "
            f"token: {[round(float(each), 4) for each in powers]}",
        )
