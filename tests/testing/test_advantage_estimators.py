"""Wrong advantage estimators, and the checks that catch them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from corerl.registry.advantage_estimators import AdvantageInputs, Advantages


def scores_of(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    return inputs.response_mask.any(dim=1), torch.where(inputs.response_mask, inputs.rewards, 0.0).sum(dim=1)


def group_moments(scores: Tensor, scored: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Size, mean and biased deviation of each row's group."""
    same = ((group_ids[:, None] == group_ids) & scored).to(scores.dtype)
    count = same.sum(dim=1)
    mean = same @ scores / count.clamp(min=1)
    squares = torch.where(same > 0, (scores - mean[:, None]) ** 2, 0.0).sum(dim=1)
    return count, mean, (squares / count.clamp(min=1)).sqrt()


def spread(numbers: Tensor, inputs: AdvantageInputs) -> Advantages:
    advantages = torch.where(inputs.response_mask, numbers[:, None], 0.0)
    return Advantages(advantages, advantages)


def group_baseline(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    count, mean, _ = group_moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, scores - mean, 0.0), inputs)


def whitened(inputs: AdvantageInputs) -> Advantages:
    """Normalised over the batch, as REINFORCE++ with a group baseline is; a group of one keeps 0."""
    scored, scores = scores_of(inputs)
    count, mean, _ = group_moments(scores, scored, inputs.group_ids)
    compared = scored & (count > 1)
    weights = compared / compared.sum().clamp(min=1)
    centred = scores - mean - ((scores - mean) * weights).sum()
    return spread(torch.where(compared, centred / ((centred**2 * weights).sum() + 1e-8).sqrt(), 0.0), inputs)


@pytest.mark.parametrize("estimator", [group_baseline, whitened])
def test_right_estimators_pass(failures: Any, estimator: Any) -> None:
    assert failures("advantage_estimators", estimator, needs_groups=True) == {}


def batch_baseline(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    mean = (scores * scored).sum() / scored.sum().clamp(min=1)
    alone = group_moments(scores, scored, inputs.group_ids)[0] == 1
    return spread(torch.where(alone, 0.0, scores - mean), inputs)


def empty_rows_in_the_mean(inputs: AdvantageInputs) -> Advantages:
    _, scores = scores_of(inputs)
    count, mean, _ = group_moments(scores, torch.ones_like(scores, dtype=torch.bool), inputs.group_ids)
    return spread(torch.where(count > 1, scores - mean, 0.0), inputs)


def leaks_through_the_mask(inputs: AdvantageInputs) -> Advantages:
    _, scores = scores_of(inputs)
    advantages = group_baseline(inputs).advantages + 0 * scores[:, None]
    return Advantages(advantages, scores[:, None].expand_as(advantages))


def one_number_a_row(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    return Advantages(scores * scored, scores * scored)


def always_float64(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(each.double() for each in group_baseline(inputs)))


def modifies_its_input(inputs: AdvantageInputs) -> Advantages:
    advantages = group_baseline(inputs)
    inputs.rewards.mul_(2)
    return advantages


def random_tie_break(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(each + 1e-3 * torch.rand(()) * inputs.response_mask for each in group_baseline(inputs)))


def mean_over_the_width(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(each / inputs.rewards.shape[1] for each in group_baseline(inputs)))


def first_row_is_special(inputs: AdvantageInputs) -> Advantages:
    scores = scores_of(inputs)[1]
    return spread(
        group_baseline(inputs).advantages.sum(dim=1) * scores.new_tensor([2.0] + [1.0] * (len(scores) - 1)), inputs
    )


def ids_as_numbers(inputs: AdvantageInputs) -> Advantages:
    weights = 1 + inputs.group_ids[:, None].to(inputs.rewards.dtype)
    return Advantages(*(each * weights for each in group_baseline(inputs)))


def divides_by_the_deviation(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    count, mean, std = group_moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, (scores - mean) / std, 0.0), inputs)


def squares(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(each * each.abs() ** 15 for each in group_baseline(inputs)))


def ranks_in_the_batch(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    below = (scores[:, None] > scores) & scored
    return spread(below.sum(dim=1).to(scores.dtype), inputs)


def lone_rows_keep_their_score(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    count, mean, _ = group_moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, scores - mean, scores), inputs)


def loops_over_rows(inputs: AdvantageInputs) -> Advantages:
    rows = []
    advantages = group_baseline(inputs).advantages
    for row in range(len(inputs.rewards)):
        rows.append(advantages[row])
    return Advantages(torch.stack(rows), advantages)


def loops_over_lists(inputs: AdvantageInputs) -> Advantages:
    """No torch operation in the loop."""
    groups: dict[int, list[float]] = {}
    for group, score in zip(inputs.group_ids.tolist(), scores_of(inputs)[1].tolist(), strict=True):
        groups.setdefault(group, []).append(score)
    return group_baseline(inputs)


def discounts_token_by_token(inputs: AdvantageInputs) -> Advantages:
    running = torch.zeros_like(inputs.rewards[:, 0])
    columns = []
    for column in reversed(range(inputs.rewards.shape[1])):
        running = inputs.rewards[:, column] + running
        columns.append(running)
    returns = torch.stack(columns[::-1], dim=1) * inputs.response_mask
    return Advantages(returns, returns)


def not_a_pair(inputs: AdvantageInputs) -> Any:
    return group_baseline(inputs).advantages


@pytest.mark.parametrize(
    ("estimator", "check", "message"),
    [
        (
            batch_baseline,
            "groups_are_isolated",
            "another group rise by 1, not by one scale (float32)",
        ),
        (ranks_in_the_batch, "groups_are_isolated", "the advantages change by"),
        (lone_rows_keep_their_score, "group_of_one_has_no_advantage", "a response alone in its group has an advantage"),
        (empty_rows_in_the_mean, "empty_rows_take_no_part", "when rows without a trained token stand beside them"),
        (leaks_through_the_mask, "zero_outside_the_mask", "the returns are not 0 where the mask is"),
        (one_number_a_row, "shape_and_dtype", "the advantages have the shape (13,) where (13, 7) is right"),
        (not_a_pair, "shape_and_dtype", "it returns Tensor, not Advantages(advantages, returns)"),
        (always_float64, "shape_and_dtype", "the advantages are torch.float64 where the inputs are torch.float32"),
        (modifies_its_input, "inputs_untouched", "it modifies its input rewards"),
        (random_tie_break, "deterministic", "two calls with the same inputs give different advantages"),
        (mean_over_the_width, "invariant_to_padding", "with five columns of padding"),
        (first_row_is_special, "invariant_to_row_order", "with the order of the rows"),
        (ids_as_numbers, "invariant_to_group_labels", "with the numbers that the groups go by"),
        (divides_by_the_deviation, "finite_with_equal_scores", "with all scores 0 the advantages hold nan"),
        (squares, "finite_with_extreme_scores", "with scores of ±1e6 the advantages hold"),
        (loops_over_rows, "vectorised", "it loops in Python"),
        (loops_over_lists, "vectorised", "it loops in Python"),
        (discounts_token_by_token, "vectorised", "it loops in Python"),
    ],
)
def test_a_wrong_estimator_is_caught(failures: Any, estimator: Any, check: str, message: str) -> None:
    assert message in failures("advantage_estimators", estimator, only=check, needs_groups=True)[check]


def test_without_needs_groups_the_checks_of_groups_are_skipped(outcomes: Any) -> None:
    result = outcomes("advantage_estimators", batch_baseline)["groups_are_isolated"]
    assert (result.status, result.reason) == ("skipped", "it declares no needs_groups")


@pytest.mark.parametrize(
    ("fact", "name"),
    [
        ("needs_critic", "values"),
        ("needs_greedy_baseline", "greedy_scores"),
        ("needs_sum_pi_squared", "sum_pi_squared"),
    ],
)
def test_an_input_is_given_when_it_is_declared(failures: Any, fact: str, name: str) -> None:
    def needs_it(inputs: AdvantageInputs) -> Advantages:
        rows = getattr(inputs, name).reshape(len(inputs.rewards), -1)[:, :1]
        values = torch.where(inputs.response_mask, inputs.rewards - rows, 0.0)
        return Advantages(values, values)

    assert failures("advantage_estimators", needs_it, **{fact: True}) == {}
    reason = failures("advantage_estimators", needs_it)["shape_and_dtype"]
    assert reason == "it raised AttributeError: 'NoneType' object has no attribute 'reshape'"
