"""Wrong batch filters, and the checks that catch them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from corerl.registry.batch_filters import FilterInputs


def different_scores(inputs: FilterInputs) -> Tensor:
    """Groups with two different scores."""
    same_group = (inputs.group_ids[:, None] == inputs.group_ids) & inputs.scored & inputs.scored[:, None]
    varied = (same_group & (inputs.scores[:, None] != inputs.scores)).any(dim=1)
    return ((inputs.group_ids[:, None] == inputs.group_ids) & varied).any(dim=1)


def keep_all(inputs: FilterInputs) -> Tensor:
    return torch.ones_like(inputs.scored)


@pytest.mark.parametrize("keep", [different_scores, keep_all])
def test_right_filters_pass(outcomes: Any, keep: Any) -> None:
    assert {result.status for result in outcomes("batch_filters", keep).values()} == {"ok"}


def splits_groups(inputs: FilterInputs) -> Tensor:
    return different_scores(inputs) & inputs.scored


def as_numbers(inputs: FilterInputs) -> Tensor:
    return different_scores(inputs).float()


def as_indices(inputs: FilterInputs) -> Tensor:
    return different_scores(inputs).nonzero().squeeze(1)


def first_groups(inputs: FilterInputs) -> Tensor:
    return inputs.group_ids < 3


def first_row_decides(inputs: FilterInputs) -> Tensor:
    return inputs.group_ids == inputs.group_ids[0]


def noisy(inputs: FilterInputs) -> Tensor:
    return (torch.rand(64) < 0.5)[inputs.group_ids]


def modifies_its_input(inputs: FilterInputs) -> Tensor:
    kept = different_scores(inputs)
    inputs.scores.zero_()
    return kept


def above_the_mean(inputs: FilterInputs) -> Tensor:
    """Fails where nothing is scored."""
    best = inputs.scores[inputs.scored].max()
    same_group = inputs.group_ids[:, None] == inputs.group_ids
    return (same_group & (inputs.scores == best)).any(dim=1)


def loops_over_groups(inputs: FilterInputs) -> Tensor:
    kept = torch.zeros_like(inputs.scored)
    for group in range(int(inputs.group_ids.max()) + 1):
        rows = inputs.group_ids == group
        scores = inputs.scores[rows & inputs.scored]
        kept[rows] = bool((scores != scores.mean()).any())
    return kept


@pytest.mark.parametrize(
    ("keep", "check", "message"),
    [
        (splits_groups, "keeps_whole_groups", "it keeps 3 of the 4 rows of a group (float32)"),
        (as_numbers, "keeps_whole_groups", "the rows kept are torch.float32 where"),
        (as_indices, "keeps_whole_groups", "the rows kept have the shape"),
        (first_groups, "invariant_to_group_labels", "with the numbers that the groups go by"),
        (first_row_decides, "invariant_to_row_order", "with the order of the rows"),
        (noisy, "deterministic", "two calls with the same inputs keep different rows"),
        (modifies_its_input, "inputs_untouched", "it modifies its input scores"),
        (above_the_mean, "copes_with_nothing_scored", "it raised RuntimeError"),
        (loops_over_groups, "vectorised", "with 8 groups"),
    ],
)
def test_a_wrong_filter_is_caught(failures: Any, keep: Any, check: str, message: str) -> None:
    assert message in failures("batch_filters", keep, only=check)[check]
