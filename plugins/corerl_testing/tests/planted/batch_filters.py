"""Wrong batch filters."""

from typing import Any

import torch
from torch import Tensor

from corerl.contracts.batch_filters import FilterInputs
from planted.fault import Fault


def _same_group(inputs: FilterInputs) -> Tensor:
    return inputs.group_ids[:, None] == inputs.group_ids


def _groups_of(rows: Tensor, inputs: FilterInputs) -> Tensor:
    """(B,) bool, rows whose group has one of ``rows``."""
    return (_same_group(inputs) & rows).any(dim=1)


def different_scores(inputs: FilterInputs) -> Tensor:
    """Groups with two different scores."""
    compared = _same_group(inputs) & inputs.scored & inputs.scored[:, None]
    return _groups_of((compared & (inputs.scores[:, None] != inputs.scores)).any(dim=1), inputs)


def keep_all(inputs: FilterInputs) -> Tensor:
    """Every group."""
    return torch.ones_like(inputs.scored)


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
    return (torch.rand(len(inputs.scores)) < 0.5)[inputs.group_ids]


def modifies_its_input(inputs: FilterInputs) -> Tensor:
    kept = different_scores(inputs)
    inputs.scores.zero_()
    return kept


def best_of_the_batch(inputs: FilterInputs) -> Tensor:
    return _groups_of(inputs.scores == inputs.scores[inputs.scored].max(), inputs)


def loops_over_groups(inputs: FilterInputs) -> Tensor:
    kept = torch.zeros_like(inputs.scored)
    for group in range(int(inputs.group_ids.max()) + 1):
        rows = inputs.group_ids == group
        scores = inputs.scores[rows & inputs.scored]
        kept[rows] = bool((scores != scores.mean()).any())
    return kept


def deviation_above_0(inputs: FilterInputs) -> Tensor:
    """The mean of equal scores is not their number but for rounding."""
    same = (_same_group(inputs) & inputs.scored).to(inputs.scores.dtype)
    mean = same @ inputs.scores / same.sum(dim=1).clamp(min=1)
    return _groups_of(inputs.scored & ((inputs.scores - mean) ** 2 > 0), inputs)


def reads_rows_without_a_score(inputs: FilterInputs) -> Tensor:
    different = _same_group(inputs) & (inputs.scores[:, None] != inputs.scores)
    return _groups_of(different.any(dim=1), inputs)


def groups_modulo_64(inputs: FilterInputs) -> Tensor:
    kept = torch.zeros(64, dtype=torch.bool)
    kept[inputs.group_ids % 64] = different_scores(inputs)
    return kept[inputs.group_ids % 64]


def best_two(inputs: FilterInputs) -> Tensor:
    scores = torch.where(inputs.scored, inputs.scores, -torch.inf)
    return _groups_of(inputs.scored & (scores >= scores.topk(2).values[-1]), inputs)


def in_16_bits(inputs: FilterInputs) -> Tensor:
    scores = inputs.scores.half()
    compared = _same_group(inputs) & inputs.scored & inputs.scored[:, None]
    return _groups_of((compared & (scores[:, None] != scores)).any(dim=1), inputs)


_THRESHOLDS: dict[int, float] = {}


def remembers_a_threshold(inputs: FilterInputs) -> Tensor:
    mean = float(inputs.scores[inputs.scored].mean()) if inputs.scored.any() else 0.0
    threshold = _THRESHOLDS.setdefault(len(inputs.scores), mean)
    return _groups_of(inputs.scored & (inputs.scores > threshold), inputs)


def _fault(wrong: Any, flaw: str, check: str, reason: str, right: Any = different_scores) -> Fault:
    return Fault("batch_filters", wrong.__name__, flaw, wrong, right, check, reason)


FAULTS = [
    _fault(
        splits_groups,
        "rows without a score leave their group",
        "keeps_whole_groups",
        "it keeps 3 of the 4 rows of a group (float32)",
    ),
    _fault(as_numbers, "the rows kept are numbers", "keeps_whole_groups", "the rows kept are torch.float32 where"),
    _fault(as_indices, "the rows kept are indices", "keeps_whole_groups", "the rows kept have the shape"),
    _fault(
        first_groups,
        "the number of a group decides",
        "invariant_to_group_labels",
        "with the numbers that the groups go by",
    ),
    _fault(first_row_decides, "the first row decides", "invariant_to_row_order", "with the order of the rows"),
    _fault(
        noisy,
        "groups are drawn at random",
        "deterministic",
        "two calls with the same inputs keep different rows",
        keep_all,
    ),
    _fault(modifies_its_input, "the scores are cleared in place", "inputs_untouched", "it modifies its input scores"),
    _fault(
        best_of_the_batch,
        "a batch without a score has no best one",
        "copes_with_nothing_scored",
        "it raised RuntimeError",
    ),
    _fault(loops_over_groups, "there is a loop over groups", "vectorised", "with 8 groups"),
    _fault(
        deviation_above_0,
        "a deviation that is rounding counts",
        "not_decided_by_rounding",
        "a deviation that is rounding decides",
    ),
    _fault(
        reads_rows_without_a_score,
        "the 0 of a failed scorer is taken for a score",
        "unscored_rows_take_no_part",
        "they are read as scores",
    ),
    _fault(
        groups_modulo_64, "group 64 is taken for group 0", "copes_with_many_groups", "some are kept and others dropped"
    ),
    _fault(
        best_two, "two best rows are taken from a batch of one", "copes_with_one_response", "it raised RuntimeError"
    ),
    _fault(in_16_bits, "scores are rounded to float16", "keeps_precision", "it computes in float16 inside"),
    _fault(
        remembers_a_threshold,
        "the mean of the first batch of each size is kept",
        "same_in_a_fresh_process",
        "it remembers earlier calls",
    ),
]
