"""Columns of the teachers in a mini-batch: values of trained tokens, one row of numbers for each."""

from typing import NamedTuple

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_columns import TokenColumn


def column_name(teacher: str, values: str) -> str:
    """The name of a column in :attr:`corerl.contracts.experience.Experience.columns`.

    >>> column_name("math", "hidden_states")
    'teacher/math/hidden_states'
    """
    return f"teacher/{teacher}/{values}"


class Found(NamedTuple):
    """Values of some of n tokens.

    Attributes:
        tokens: (m,) int64, indices among the n.
        values: (m, ...).
    """

    tokens: Tensor
    values: Tensor


def column(batch: Experience, rows: Tensor, mask: Tensor, values: Tensor) -> TokenColumn:
    """A column for the batch.

    Args:
        rows: (b,) int64, in rising order.
        mask: (b, T) bool, response tokens of these rows that have values; T may be smaller than that of the batch.
        values: (N, ...) of these tokens in row-major order.
    """
    counts = torch.zeros(batch.input_ids.shape, dtype=torch.int32)
    row, step = mask.nonzero(as_tuple=True)
    counts[rows[row], batch.prompt_lengths[rows[row]] + step] = 1
    return TokenColumn(values, counts)


def find(batch: Experience, name: str, rows: Tensor, steps: Tensor) -> Found | None:
    """The values of response tokens; None if the batch has no such column.

    Args:
        rows, steps: (n,) int64, places of the tokens in a (b, T) column.
    """
    column = batch.columns.get(name)
    if column is None:
        return None
    places = batch.prompt_lengths[rows] + steps
    ends = column.counts.flatten().cumsum(0, dtype=torch.int64).view(column.counts.shape)
    tokens = (column.counts[rows, places] > 0).nonzero().squeeze(1)
    return Found(tokens, column.values[ends[rows[tokens], places[tokens]] - 1])
