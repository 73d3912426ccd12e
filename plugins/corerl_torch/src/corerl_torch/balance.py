"""Rows of a batch in parts of about as many tokens."""

import heapq

import torch
from torch import Tensor

IMBALANCE = 1.02
"""the largest share of tokens, over the mean, with which a batch is cut in place"""

GROUP_IMBALANCE = 1.05
"""that with which groups stay whole: a rank computes their common prefixes once"""


def balanced_partitions(lengths: Tensor, count: int) -> list[list[int]]:
    """Row indices of so many parts: the longest row left goes to the part with the fewest tokens.

    Args:
        lengths: (B,) tokens in each row.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, 0, part) for part in range(count)]  # tokens, rows
    tokens_of = lengths.tolist()
    for row in torch.argsort(lengths, descending=True, stable=True).tolist():
        tokens, rows, part = loads[0]
        parts[part].append(row)
        heapq.heapreplace(loads, (tokens + tokens_of[row], rows + 1, part))
    return parts


def balance(
    lengths: Tensor, ranks: int, group_ids: Tensor | None = None, unit_ids: Tensor | None = None
) -> list[Tensor]:
    """Row indices for each rank, ascending, with about the same number of tokens.

    Consecutive rows where that is balanced to ``IMBALANCE``, as it is for large batches: such shares are views, and
    nothing is copied. Otherwise the longest group left goes to the rank with the fewest tokens if that is balanced to
    ``GROUP_IMBALANCE``, and if it is not, the longest row left.

    Args:
        lengths: (B,) tokens in each row.
        group_ids: (B,) int64; None: each row is a group.
        unit_ids: (B,) int64, equal for rows that stay together, however unbalanced; None: none do.
    """
    if ranks == 1:
        return [torch.arange(len(lengths))]
    if unit_ids is not None:
        return _whole(lengths, ranks, unit_ids)[0]
    total = int(lengths.sum())
    ends = torch.cumsum(lengths, 0)
    targets = torch.arange(1, ranks) * total // ranks
    cuts = torch.searchsorted(ends - lengths // 2, targets)
    ranges = list(torch.tensor_split(torch.arange(len(lengths)), cuts))
    before, bounds = torch.nn.functional.pad(ends, (1, 0)), torch.nn.functional.pad(cuts, (1, 1))
    bounds[-1] = len(lengths)
    if int(before[bounds].diff().max()) * ranks <= IMBALANCE * total:
        return ranges
    if group_ids is not None:
        shares, most = _whole(lengths, ranks, group_ids)
        if most * ranks <= GROUP_IMBALANCE * total:
            return shares
    return [torch.tensor(sorted(rows), dtype=torch.int64) for rows in balanced_partitions(lengths, ranks)]


def _whole(lengths: Tensor, ranks: int, ids: Tensor) -> tuple[list[Tensor], int]:
    """The rows of each rank, which has all rows of an id or none, and the most tokens of a rank."""
    _, places = torch.unique(ids, return_inverse=True)
    tokens = lengths.new_zeros(int(places.max()) + 1).index_add_(0, places, lengths)
    parts = balanced_partitions(tokens, ranks)
    owners = torch.empty(len(tokens), dtype=torch.int64)
    for rank, part in enumerate(parts):
        owners[part] = rank
    rows = torch.argsort(owners[places], stable=True)  # ascending within a rank
    shares = list(torch.split(rows, torch.bincount(owners[places], minlength=ranks).tolist()))
    return shares, int(tokens.new_zeros(ranks).index_add_(0, owners, tokens).max())
