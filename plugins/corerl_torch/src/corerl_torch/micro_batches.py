"""Cutting a mini-batch into micro-batches by size."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corerl.contracts.training_strategies import MicroBatching
from corerl_torch.balance import balanced_partitions


def micro_batches(lengths: Tensor, limit: MicroBatching, *, packed: bool = False, at_least: int = 1) -> list[Tensor]:
    """Row indices of each micro-batch; none of an empty batch.

    Args:
        lengths: (B,) tokens in each row.
        limit: the largest micro-batch. Its tokens are rows times the longest row's length: padding is computed too.
        packed: rows are laid end to end, so that its tokens are the sum of the rows' lengths, and all micro-batches
            have about as many. Otherwise rows of like length stand together, the longest first.
        at_least: micro-batches to make of packed rows that are cut by tokens, where there are as many rows: another
            rank has as many.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    if not len(order):
        return []
    if limit.max_sequences is not None:
        return list(torch.split(order, limit.max_sequences))
    assert limit.max_tokens is not None
    if packed:
        return _packed(lengths, order, limit.max_tokens, at_least)
    cuts: list[Tensor] = []
    start = 0
    while start < len(order):
        rows = max(1, limit.max_tokens // max(1, int(lengths[order[start]])))
        cuts.append(order[start : start + rows])
        start += rows
    return cuts


def lockstep_micro_batches(
    lengths: Tensor,
    limit: MicroBatching,
    gather: Callable[[int], Sequence[int]],
    *,
    packed: bool,
    sharing: int = 1,
    multiple: int = 1,
) -> list[Tensor]:
    """Row indices of each micro-batch, as many as the rank with most of them has, at least one; the last may be empty.

    Args:
        lengths: (B,) tokens in each row of this rank.
        gather: what every rank has, of what this one has; called by all ranks.
        packed: as :func:`micro_batches` has it.
        sharing: ranks that have a slice of every row each; ``limit.max_tokens`` is meant of one.
        multiple: what the number of micro-batches is a multiple of.
    """
    if limit.max_tokens is not None:
        limit = dataclasses.replace(limit, max_tokens=limit.max_tokens * sharing)
    cuts = micro_batches(lengths, limit, packed=packed)
    most = max(1, *gather(len(cuts)))
    most += -most % multiple
    if len(cuts) < most:
        cuts = micro_batches(lengths, limit, packed=packed, at_least=most)
    return cuts + [torch.zeros(0, dtype=torch.int64)] * (most - len(cuts))


def _packed(lengths: Tensor, order: Tensor, max_tokens: int, at_least: int) -> list[Tensor]:
    """As many as first fit makes, with about as many tokens each, where that keeps the limit."""
    filled = _first_fit(order, lengths, max_tokens)
    balanced = balanced_partitions(lengths, max(len(filled), min(at_least, len(order))))
    fits = all(len(rows) == 1 or int(lengths[rows].sum()) <= max_tokens for rows in balanced)
    return [torch.tensor(rows) for rows in (balanced if fits else filled)]


def _first_fit(order: Tensor, lengths: Tensor, max_tokens: int) -> list[list[int]]:
    """Each row, the longest first, goes into the first micro-batch that has room for it."""
    room: list[int] = []
    members: list[list[int]] = []
    tokens_of = lengths.tolist()
    for row in order.tolist():
        length = tokens_of[row]
        place = next((number for number, left in enumerate(room) if length <= left), len(room))
        if place == len(room):
            room.append(max_tokens)
            members.append([])
        room[place] -= length
        members[place].append(row)
    return members
