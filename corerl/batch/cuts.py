"""Cutting a batch into mini-batches of whole groups."""

import torch
from torch import Tensor


def mini_batches(group_ids: Tensor, groups: int) -> list[Tensor]:
    """Row indices of each mini-batch of ``groups`` prompts, every prompt's responses together, in the order of the ids.

    Args:
        group_ids: (B,) int64.
        groups: prompts in a mini-batch; the last may have fewer.
    """
    unique = torch.unique(group_ids)
    return [torch.isin(group_ids, ids).nonzero().squeeze(1) for ids in torch.split(unique, groups)]


def in_prompts(rows: Tensor, group_ids: Tensor) -> Tensor:
    """(B,) bool: the row's prompt has one of ``rows``, (B,) bool."""
    return torch.isin(group_ids, group_ids[rows])
