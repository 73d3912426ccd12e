"""Loss aggregation, as one weight for each token.

The weights are computed once from the mask of the whole mini-batch. The loss is then a plain sum of term times weight,
so it does not depend on how the mini-batch is cut into micro-batches, padded, or spread over data-parallel ranks.
"""

import torch
from torch import Tensor


def loss_weights(
    response_mask: Tensor,
    mode: str,
    scale_factor: int | None = None,
    episode_ids: Tensor | None = None,
    group_ids: Tensor | None = None,
) -> Tensor:
    """The weight of each token's term in the loss of a mini-batch.

    With l the terms, m the mask, N its number of true tokens, n_i those of sequence i, S the number of sequences with
    n_i > 0; a sequence is an episode, with all of its rows. N_g is the number of tokens of prompt g, P the number of
    prompts with N_g > 0:

    ===========================  =========================================
    ``token-mean``               sum(l m) / N
    ``token-sum``                sum(l m)
    ``prompt-mean``              sum_g (sum_(i,t)(l m) / N_g) / P
    ``seq-mean-token-sum``       sum_i sum_t(l m) / S
    ``seq-mean-token-mean``      sum_i (sum_t(l m) / n_i) / S
    ``seq-mean-token-sum-norm``  sum_i sum_t(l m) / (S · scale_factor)
    ===========================  =========================================

    Args:
        response_mask: (B, T) bool of the whole mini-batch, on all ranks.
        scale_factor: the constant length of ``seq-mean-token-sum-norm`` (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783,
            section 3.1).
        episode_ids: (B,) int64, equal for rows of one episode; None: each row is an episode.
        group_ids: (B,) int64, equal for responses to one prompt, for ``prompt-mean`` (ScaleRL, Khatri et al. 2025,
            arXiv 2510.13786, section 3.2).

    Returns:
        (B, T) float64, 0 where the mask is; all 0 when the mask is empty.
    """
    mask = response_mask.to(torch.float64)
    return mask * row_factors(response_mask.sum(1), mode, scale_factor, episode_ids, group_ids)[:, None]


def row_factors(
    trained: Tensor,
    mode: str,
    scale_factor: int | None = None,
    episode_ids: Tensor | None = None,
    group_ids: Tensor | None = None,
) -> Tensor:
    """(B,) float64, the weight of each trained token of a row, as of :func:`loss_weights`.

    Args:
        trained: (B,) int64, trained tokens of each row of the mini-batch.
    """
    of_unit, tokens = trained.to(torch.float64), trained.sum().clamp(min=1).to(torch.float64)
    sequences, one = (trained > 0).sum(), torch.ones(len(trained), dtype=torch.float64)
    units = group_ids if mode == "prompt-mean" else episode_ids
    if units is not None:
        tokens_of_unit = of_unit.new_zeros(int(units.max()) + 1).index_add_(0, units, of_unit)
        of_unit, sequences = tokens_of_unit[units], (tokens_of_unit > 0).sum()
    sequences = sequences.clamp(min=1)
    if mode == "token-mean":
        return one / tokens
    if mode == "token-sum":
        return one
    if mode == "seq-mean-token-sum":
        return one / sequences
    if mode == "seq-mean-token-mean" or (mode == "prompt-mean" and group_ids is not None):
        return one / of_unit.clamp(min=1) / sequences
    if mode == "seq-mean-token-sum-norm" and scale_factor is not None:
        return one / sequences / scale_factor
    raise ValueError(f"loss_agg_mode '{mode}' with scale_factor {scale_factor}")
