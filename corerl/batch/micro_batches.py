"""Cutting a batch: into mini-batches of whole groups, and those into micro-batches by size."""

import torch
from torch import Tensor

from corerl.registry.training_strategies import MicroBatching


def micro_batches(lengths: Tensor, limit: MicroBatching) -> list[Tensor]:
    """Row indices of each micro-batch; rows of like length stand together, the longest first.

    Args:
        lengths: (B,) tokens in each row.
        limit: the largest micro-batch. Its tokens are rows times the longest row's length: padding is computed too.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    if limit.max_sequences is not None:
        return list(torch.split(order, limit.max_sequences))
    assert limit.max_tokens is not None
    cuts: list[Tensor] = []
    start = 0
    while start < len(order):
        rows = max(1, limit.max_tokens // max(1, int(lengths[order[start]])))
        cuts.append(order[start : start + rows])
        start += rows
    return cuts


def mini_batches(group_ids: Tensor, groups: int) -> list[Tensor]:
    """Row indices of each mini-batch of ``groups`` prompts, every prompt's responses together, in the order of the ids.

    Args:
        group_ids: (B,) int64.
        groups: prompts in a mini-batch; the last one holds what is left.
    """
    unique = torch.unique(group_ids)
    return [torch.isin(group_ids, ids).nonzero().squeeze(1) for ids in torch.split(unique, groups)]
