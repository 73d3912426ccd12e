"""Cutting a batch: into mini-batches of whole groups, and those into micro-batches by size."""

import torch
from torch import Tensor

from corerl.registry.training_strategies import MicroBatching


def micro_batches(lengths: Tensor, limit: MicroBatching, *, packed: bool = False) -> list[Tensor]:
    """Row indices of each micro-batch; none of an empty batch.

    Args:
        lengths: (B,) tokens in each row.
        limit: the largest micro-batch. Its tokens are rows times the longest row's length: padding is computed too.
        packed: rows are laid end to end, so that its tokens are the sum of the rows' lengths. Otherwise rows of like
            length stand together, the longest first.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    if not len(order):
        return []
    if limit.max_sequences is not None:
        return list(torch.split(order, limit.max_sequences))
    assert limit.max_tokens is not None
    if packed:
        return _first_fit(order, lengths[order].tolist(), limit.max_tokens)
    cuts: list[Tensor] = []
    start = 0
    while start < len(order):
        rows = max(1, limit.max_tokens // max(1, int(lengths[order[start]])))
        cuts.append(order[start : start + rows])
        start += rows
    return cuts


def _first_fit(order: Tensor, lengths: list[int], max_tokens: int) -> list[Tensor]:
    """Each row, the longest first, goes into the first micro-batch that has room for it."""
    room: list[int] = []
    members: list[list[int]] = []
    for row, length in zip(order.tolist(), lengths, strict=True):
        place = next((number for number, left in enumerate(room) if length <= left), len(room))
        if place == len(room):
            room.append(max_tokens)
            members.append([])
        room[place] -= length
        members[place].append(row)
    return [torch.tensor(rows) for rows in members]


def mini_batches(group_ids: Tensor, groups: int) -> list[Tensor]:
    """Row indices of each mini-batch of ``groups`` prompts, every prompt's responses together, in the order of the ids.

    Args:
        group_ids: (B,) int64.
        groups: prompts in a mini-batch; the last one holds what is left.
    """
    unique = torch.unique(group_ids)
    return [torch.isin(group_ids, ids).nonzero().squeeze(1) for ids in torch.split(unique, groups)]
