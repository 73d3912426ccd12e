"""Checks of batch filters: the contract of :mod:`corerl.registry.batch_filters`."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from corerl.registry.base import Selected
from corerl.registry.batch_filters import BatchFilter, FilterInputs
from corerl.testing.results import Run
from corerl.testing.tensors import (
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
    "copes_with_nothing_scored": _nothing_scored,
}
