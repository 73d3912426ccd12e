"""Checks of batch filters: the contract of :mod:`corerl.contracts.batch_filters`."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from corerl.contracts.batch_filters import BatchFilter, FilterInputs
from corerl.registry import Selected
from corerl_testing.results import Run
from corerl_testing.state import expect_precision, expect_the_same_elsewhere
from corerl_testing.tensors import (
    expect,
    expect_shape,
    expect_untouched,
    expect_vectorised,
    generator,
    in_both_dtypes,
)

Keep = Callable[[FilterInputs], Tensor]
GROUPS = (0, 1, 0, 2, 1, 3, 0, 2, 1, 2, 0, 4, 4, 5, 5, 5)
SCORES = (0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.0, 0.9)
UNSCORED = (6, 11, 12, 14)
"""Rows of failed scorers: one of group 0, all of group 4, one of group 5."""


def checks(selected: Selected[BatchFilter]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for name, check in _CHECKS.items():
        yield name, partial(_in_both_dtypes, check, selected)
    yield "vectorised", partial(_vectorised, selected)
    yield "same_in_a_fresh_process", partial(_same_in_a_fresh_process, selected)


def example(dtype: torch.dtype) -> FilterInputs:
    """Groups with equal scores, with different ones, of one response, and without any score."""
    scored = torch.ones(len(GROUPS), dtype=torch.bool)
    scored[list(UNSCORED)] = False
    scores = torch.tensor(SCORES, dtype=dtype)
    components = {"accuracy": scores.round(), "format": torch.where(scored, 1 - scores, 0.0)}
    return FilterInputs(scores, scored, torch.tensor(GROUPS), components)


def _in_both_dtypes(check: Callable[[Keep, FilterInputs], None], selected: Selected[BatchFilter]) -> None:
    in_both_dtypes(partial(check, selected.load()), example)


def _kept(keep: Keep, inputs: FilterInputs) -> Tensor:
    kept = keep(inputs)
    expect_shape("the rows kept", kept, (len(inputs.scores),), torch.bool)
    return kept


def _ordered(inputs: FilterInputs, order: Tensor) -> FilterInputs:
    components = {name: part[order] for name, part in inputs.components.items()}
    return FilterInputs(inputs.scores[order], inputs.scored[order], inputs.group_ids[order], components)


def _whole_groups(keep: Keep, inputs: FilterInputs) -> None:
    kept = _kept(keep, inputs)
    for group in range(int(inputs.group_ids.max()) + 1):
        rows = kept[inputs.group_ids == group]
        expect(
            bool(rows.all()) or not bool(rows.any()), f"it keeps {int(rows.sum())} of the {len(rows)} rows of a group"
        )


def _inputs_untouched(keep: Keep, inputs: FilterInputs) -> None:
    expect_untouched(inputs, lambda: keep(inputs))


def _deterministic(keep: Keep, inputs: FilterInputs) -> None:
    expect(torch.equal(_kept(keep, inputs), _kept(keep, inputs)), "two calls with the same inputs keep different rows")


def _row_order(keep: Keep, inputs: FilterInputs) -> None:
    order = torch.randperm(len(inputs.scores), generator=generator(1))
    same = torch.equal(_kept(keep, _ordered(inputs, order)), _kept(keep, inputs)[order])
    expect(same, "the rows kept change with the order of the rows")


def _group_labels(keep: Keep, inputs: FilterInputs) -> None:
    labels = torch.randperm(int(inputs.group_ids.max()) + 1, generator=generator(2))
    renamed = dataclasses.replace(inputs, group_ids=labels[inputs.group_ids])
    same = torch.equal(_kept(keep, renamed), _kept(keep, inputs))
    expect(same, "the rows kept change with the numbers that the groups go by")


def _nothing_scored(keep: Keep, inputs: FilterInputs) -> None:
    zeros = {name: torch.zeros_like(part) for name, part in inputs.components.items()}
    nothing = FilterInputs(torch.zeros_like(inputs.scores), torch.zeros_like(inputs.scored), inputs.group_ids, zeros)
    _whole_groups(keep, nothing)


def _unscored_numbers(keep: Keep, inputs: FilterInputs) -> None:
    """The numbers in the row of a failed scorer have no effect, even if all scores of its group are equal."""
    equal = torch.where(inputs.scored, 0.5, inputs.scores).to(inputs.scores.dtype)
    for given in (inputs, dataclasses.replace(inputs, scores=equal, components=_parts(equal))):
        kept = _kept(keep, given)
        for number in (0.5, 1.0, -1.0):
            same = torch.equal(_kept(keep, _filled(given, number)), kept)
            expect(
                same,
                f"the rows kept change when {number:g} stands in the rows without a score: they are read as scores",
            )


def _filled(inputs: FilterInputs, number: float) -> FilterInputs:
    components = {name: torch.where(inputs.scored, part, number) for name, part in inputs.components.items()}
    scores = torch.where(inputs.scored, inputs.scores, number)
    return dataclasses.replace(inputs, scores=scores, components=components)


def _rounding(keep: Keep, inputs: FilterInputs) -> None:
    """Equal scores are equal for any number: a group of 0.7 is treated like groups of numbers on both sides."""
    group = inputs.group_ids == 1

    def fate(score: float) -> bool:
        scores = torch.where(group & inputs.scored, score, inputs.scores)
        return bool(_kept(keep, FilterInputs(scores, inputs.scored, inputs.group_ids, _parts(scores)))[group].all())

    for number, low, high in ((0.7, 0.6875, 0.703125), (0.1, 0.09375, 0.109375), (1 / 3, 0.328125, 0.34375)):
        below, above = fate(low), fate(high)
        expect(
            fate(number) == below or below != above,
            f"a group of scores of {number:.3g} is {'dropped' if below else 'kept'}, and with {low:g} or {high:g} "
            "it is not: a deviation that is rounding decides",
        )


def _parts(scores: Tensor) -> dict[str, Tensor]:
    return {"accuracy": scores, "format": scores}


def _many_groups(keep: Keep, inputs: FilterInputs) -> None:
    """Sixty copies of the batch, each with its own groups: every copy is treated the same."""
    copies, groups = 60, int(inputs.group_ids.max()) + 1
    ids = torch.cat([inputs.group_ids + copy * groups for copy in range(copies)])
    parts = {name: part.repeat(copies) for name, part in inputs.components.items()}
    kept = _kept(keep, FilterInputs(inputs.scores.repeat(copies), inputs.scored.repeat(copies), ids, parts))
    same = bool((kept.view(copies, -1) == kept[: len(inputs.scores)]).all())
    expect(same, f"of {copies} copies of the same groups, beside each other, some are kept and others dropped")


def _one_response(keep: Keep, inputs: FilterInputs) -> None:
    for scored in (True, False):
        score = torch.ones_like(inputs.scores[:1]) * scored
        _kept(keep, FilterInputs(score, torch.tensor([scored]), torch.zeros(1, dtype=torch.int64), _parts(score)))


def _precision(keep: Keep, inputs: FilterInputs) -> None:
    expect_precision(lambda: keep(inputs), inputs.scores.dtype)


def _same_in_a_fresh_process(selected: Selected[BatchFilter]) -> None:
    """The second of two batches of one shape, as the first call of a fresh process."""
    batch = example(torch.float32)
    ones = torch.ones_like(batch.scores)
    expect_the_same_elsewhere(selected, (dataclasses.replace(batch, scores=ones, components=_parts(ones)),), (batch,))


def _vectorised(selected: Selected[BatchFilter]) -> None:
    keep = selected.load()

    def call(rows: int, groups: int) -> Callable[[], object]:
        scores = torch.rand(rows, generator=generator(rows))
        parts = {"accuracy": scores, "format": scores}
        inputs = FilterInputs(scores, torch.ones(rows, dtype=torch.bool), torch.arange(rows) % groups, parts)
        return lambda: keep(inputs)

    expect_vectorised(lambda rows: call(rows, 4), "responses")
    expect_vectorised(lambda groups: call(128, groups), "groups")


_CHECKS: dict[str, Callable[[Keep, FilterInputs], None]] = {
    "keeps_whole_groups": _whole_groups,
    "inputs_untouched": _inputs_untouched,
    "deterministic": _deterministic,
    "invariant_to_row_order": _row_order,
    "invariant_to_group_labels": _group_labels,
    "keeps_precision": _precision,
    "copes_with_nothing_scored": _nothing_scored,
    "copes_with_one_response": _one_response,
    "copes_with_many_groups": _many_groups,
    "unscored_rows_take_no_part": _unscored_numbers,
    "not_decided_by_rounding": _rounding,
}
