"""Division of a mini-batch into micro-batches by size."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corerl.contracts.training_strategies import MicroBatching
from corerl_torch.balance import balanced_partitions
from corerl_torch.tries import Trie

ROUNDS = 10
"""bisections of the token limit that balance the micro-batches of a trie"""


def micro_batches(
    lengths: Tensor,
    limit: MicroBatching,
    *,
    packed: bool = False,
    at_least: int = 1,
    trie: Trie | None = None,
    unit_ids: Tensor | None = None,
) -> list[Tensor]:
    """Row indices of each micro-batch; an empty batch has no micro-batches.

    Args:
        lengths: (B,) tokens in each row.
        limit: the largest micro-batch. Its tokens are rows times the longest row's length, because padding is computed.
        packed: rows are laid end to end: the tokens of a micro-batch are the sum of its rows' lengths, and all
            micro-batches have about equal sums. Otherwise rows of similar length are together, the longest first.
        at_least: least number of micro-batches of packed rows that are cut by tokens, if there are enough rows: another
            rank has this number.
        trie: of packed rows that share prefixes, otherwise None: the tokens of a micro-batch are the distinct ones of
            its rows, rows with common prefixes are together, and there may be fewer micro-batches than ``at_least``.
        unit_ids: (B,) int64, equal for rows that stay together, in a micro-batch that may be larger than the limit;
            None: each row may be apart. With them, ``trie`` has no effect.
    """
    if unit_ids is not None and len(lengths):
        return _of_units(lengths, unit_ids, limit, packed, at_least)
    if trie is not None and len(lengths):
        return _of_trie(trie, limit, at_least)
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
    trie: Trie | None = None,
    unit_ids: Tensor | None = None,
) -> list[Tensor]:
    """Row indices of each micro-batch, as many as on the rank that needs most, at least one; the last may be empty.

    Args:
        lengths: (B,) tokens in each row of this rank.
        gather: returns the values of all ranks, given this rank's value; called on all ranks.
        packed, trie, unit_ids: as for :func:`micro_batches`.
        sharing: ranks that share every row, with a slice each; ``limit.max_tokens`` applies to one rank.
        multiple: the number of micro-batches is a multiple of this.
    """
    if limit.max_tokens is not None:
        limit = dataclasses.replace(limit, max_tokens=limit.max_tokens * sharing)
    cuts = micro_batches(lengths, limit, packed=packed, trie=trie, unit_ids=unit_ids)
    most = max(1, *gather(len(cuts)))
    most += -most % multiple
    if len(cuts) < most:
        cuts = micro_batches(lengths, limit, packed=packed, at_least=most, trie=trie, unit_ids=unit_ids)
    return cuts + [torch.zeros(0, dtype=torch.int64)] * (most - len(cuts))


def _packed(lengths: Tensor, order: Tensor, max_tokens: int, at_least: int) -> list[Tensor]:
    """The number of first-fit bins, with about equal token counts, if these keep the limit."""
    filled = _first_fit(order, lengths, max_tokens)
    balanced = balanced_partitions(lengths, max(len(filled), min(at_least, len(order))))
    fits = all(len(rows) == 1 or int(lengths[rows].sum()) <= max_tokens for rows in balanced)
    return [torch.tensor(rows) for rows in (balanced if fits else filled)]


def _of_units(lengths: Tensor, unit_ids: Tensor, limit: MicroBatching, packed: bool, at_least: int) -> list[Tensor]:
    """Micro-batches of units, each as long as its rows together, or if rows are padded as its longest row."""
    _, unit_of_row, sizes = torch.unique(unit_ids, return_inverse=True, return_counts=True)
    rows, sequences = int(sizes.max()), limit.max_sequences
    whole = lengths.new_zeros(len(sizes)).scatter_reduce_(0, unit_of_row, lengths, "sum" if packed else "amax")
    per_unit = dataclasses.replace(limit, max_sequences=sequences and max(1, sequences // rows))
    if limit.max_tokens is not None and not packed:
        per_unit = dataclasses.replace(per_unit, max_tokens=limit.max_tokens // rows)
    cuts = micro_batches(whole, per_unit, packed=packed, at_least=at_least)
    return [torch.isin(unit_of_row, units).nonzero().squeeze(1) for units in cuts]


def _of_trie(trie: Trie, limit: MicroBatching, at_least: int) -> list[Tensor]:
    """Rows with common prefixes together; of the limits in tokens the lowest that gives no more micro-batches."""
    if limit.max_sequences is not None:
        return list(torch.split(torch.tensor(trie.order), limit.max_sequences))
    assert limit.max_tokens is not None
    best = _filled(trie, limit.max_tokens)
    most = max(len(best), min(at_least, len(trie.order)))
    low, high = trie.tokens() // most, limit.max_tokens
    for _ in range(ROUNDS if most > 1 else 0):
        between = (low + high) // 2
        if not low < between < high:
            break
        cuts = _filled(trie, between)
        if len(cuts) <= most:
            best, high = cuts, between
        else:
            low = between
    return [torch.tensor(rows) for rows in best]


def _filled(trie: Trie, max_tokens: int) -> list[list[int]]:
    """First-fit bins of the parts of the trie; tokens that parts of a bin share are counted for each."""
    parts = trie.parts(max_tokens)
    tokens = torch.tensor([trie.tokens(*part) for part in parts])
    bins = _first_fit(torch.argsort(tokens, descending=True, stable=True), tokens, max_tokens)
    return [[row for part in each for row in trie.order[slice(*parts[part])]] for each in bins]


def _first_fit(order: Tensor, lengths: Tensor, max_tokens: int) -> list[list[int]]:
    """Put each row, the longest first, into the first micro-batch with room for it."""
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
