"""Sums, means and deviations over groups and masks, for advantage estimators.

Values are float32 or float64; results have the same dtype and device.
"""

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 32
"""columns of :func:`discounted_sums` in one matrix product"""

WHITEN_EPSILON = 1e-8


def group_sums(values: Tensor, group_ids: Tensor) -> Tensor:
    """The sum of each row's group, at every row.

    Args:
        values: (B,) or (B, K).
        group_ids: (B,) int64, 0 … G-1.

    Returns:
        The shape and dtype of ``values``.
    """
    groups = int(group_ids.max()) + 1
    return values.new_zeros(groups, *values.shape[1:]).index_add_(0, group_ids, values)[group_ids]


def group_moments(scores: Tensor, scored: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Size, mean and unbiased standard deviation of each response's group, over its scored responses.

    Args:
        scores: (B,) or (B, K) float, K scores of each response.
        scored: (B,) bool, the responses that count.
        group_ids: (B,) int64, 0 … G-1.

    Returns:
        The size, (B,); the mean and the deviation in the shape of ``scores``. The deviation of a group of one is 0.
        Computed in float64: equal float32 scores have exactly their value as mean, and deviation 0.
    """
    values = scores.to(torch.float64).view(len(scores), -1)
    weights = scored.to(torch.float64)[:, None]
    count = group_sums(weights, group_ids)
    mean = group_sums(values * weights, group_ids) / count.clamp(min=1)
    variance = group_sums(weights * (values - mean) ** 2, group_ids) / (count - 1).clamp(min=1)
    return count[:, 0].to(scores.dtype), _like(mean, scores), _like(variance.sqrt(), scores)


def group_maxima(values: Tensor, group_ids: Tensor) -> Tensor:
    """The largest value of each row's group, at every row; arguments as for :func:`group_sums`, but only (B,)."""
    groups = int(group_ids.max()) + 1
    return values.new_full((groups,), -torch.inf).scatter_reduce_(0, group_ids, values, "amax")[group_ids]


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(values - mean) / sqrt(var + 1e-8), mean and unbiased variance over the elements where ``mask`` is true.

    Args:
        values: (B, T) float.
        mask: (B, T) bool.

    Returns:
        (B, T), 0 where ``mask`` is false, and everywhere if fewer than two elements count.
    """
    count = mask.sum()
    mean = torch.where(mask, values, 0.0).sum(dtype=torch.float64) / count.clamp(min=1)
    centred = torch.where(mask, values - mean, 0.0)
    variance = centred.square().sum(dtype=torch.float64) / (count - 1).clamp(min=1)
    return torch.where(count > 1, centred * (variance + WHITEN_EPSILON).rsqrt(), 0.0)


def whiten_scores(scores: Tensor, weights: Tensor) -> Tensor:
    """As :func:`whiten`, for responses with one number at all their tokens.

    Args:
        scores: (B,) float.
        weights: (B,) int: the weight of each response, its number of tokens; 0 excludes it.

    Returns:
        (B,), 0 where the weight is 0, and everywhere if the weights add up to less than two.
    """
    counts = weights.to(scores.dtype)
    total = counts.sum()
    mean = (scores * counts).sum() / total.clamp(min=1)
    centred = torch.where(weights > 0, scores - mean, 0.0)
    variance = (centred.square() * counts).sum() / (total - 1).clamp(min=1)
    return torch.where(total > 1, centred * (variance + WHITEN_EPSILON).rsqrt(), 0.0)


def discounted_sums(values: Tensor, mask: Tensor, discount: float) -> Tensor:
    """y_t = values_t + discount · y_(next true t): the recursion skips masked tokens and is carried over them.

    Args:
        values: (B, T) float; ignored where ``mask`` is false.
        mask: (B, T) bool, with or without holes.
        discount: 0 … 1.

    Returns:
        (B, T), 0 where ``mask`` is false.
    """
    holes = has_holes(mask)
    if holes and discount != 1:
        return spread(_row_sums(compact(values, mask), discount), mask)
    sums = _row_sums(torch.where(mask, values, 0.0), discount)
    return torch.where(mask, sums, 0.0) if holes else sums


def has_holes(mask: Tensor) -> bool:
    """Whether in some row of ``mask``, (B, T) bool, a false element precedes a true one."""
    return bool((mask[:, 1:] > mask[:, :-1]).any())


def compact(values: Tensor, mask: Tensor) -> Tensor:
    """The elements where ``mask`` is true, moved to the left.

    Args:
        values: (B, T).
        mask: (B, T) bool.

    Returns:
        (B, largest number of true elements in a row), 0 after a row's last element.
    """
    left = _left(mask)
    if not has_holes(mask):
        return torch.where(left, values[:, : left.shape[1]], values.new_zeros(()))
    return values.new_zeros(left.shape).masked_scatter_(left, values[mask])


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """The inverse of :func:`compact`: (B, T), 0 where ``mask`` is false."""
    if not has_holes(mask):
        return torch.where(mask, functional.pad(values, (0, mask.shape[1] - values.shape[1])), 0.0)
    return values.new_zeros(mask.shape).masked_scatter_(mask, values[_left(mask)])


def _like(values: Tensor, scores: Tensor) -> Tensor:
    return values.view(scores.shape).to(scores.dtype)


def _row_sums(values: Tensor, discount: float) -> Tensor:
    """y_t = values_t + discount · y_(t+1) over whole rows of ``values``, (B, T).

    Within blocks of columns by a product with a triangular matrix of powers. The contribution of later blocks is the
    same recursion over the blocks' first sums. Matrix products below float32 precision (TF32) would change the result.
    """
    rows, tokens = values.shape
    padded = functional.pad(values, (0, -tokens % BLOCK)) if tokens % BLOCK else values
    sums: Tensor = padded.reshape(rows, -1, BLOCK) @ _powers(discount, values)
    if tokens > BLOCK:
        following = functional.pad(sums[:, 1:, 0], (0, 1))
        carried = _row_sums(following, discount**BLOCK)
        decay = discount ** torch.arange(BLOCK, 0, -1, dtype=torch.float64, device=values.device)
        sums.addcmul_(carried[:, :, None], decay.to(values.dtype))
    return sums.view(rows, -1)[:, :tokens].contiguous()


def _left(mask: Tensor) -> Tensor:
    """``compact(mask, mask)``: each row has the true elements of ``mask`` first."""
    lengths = mask.sum(dim=1)
    return torch.arange(int(lengths.max()), device=mask.device) < lengths[:, None]


def _powers(base: float, like: Tensor) -> Tensor:
    """(BLOCK, BLOCK): base^(row - column) on and below the diagonal; subnormal numbers are 0."""
    steps = torch.arange(BLOCK, dtype=torch.float64, device=like.device)
    powers = torch.tril(base ** (steps[:, None] - steps).clamp(min=0)).to(like.dtype)
    return torch.where(powers < torch.finfo(like.dtype).tiny, 0.0, powers)
