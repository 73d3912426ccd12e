"""Covariance of a token: its share in the covariance of log-prob and advantage.

With means over the response tokens of the mini-batch::

    cov = (log pi - mean log pi) · (A - mean A)

Cui et al. 2025, arXiv 2505.22617, equation 10.
"""

import torch
from torch import Tensor

from corerl.contracts.policy_losses import PolicyLossInputs


def token_covariance(inputs: PolicyLossInputs) -> Tensor:
    """The covariance of each token, in float64, so that the order of the rows does not matter.

    Returns:
        (B, T) float64; undefined outside the responses.
    """
    mask = inputs.response_mask
    tokens = mask.sum().clamp(min=1)

    def centred(values: Tensor) -> Tensor:
        values = torch.where(mask, values.double(), 0.0)
        return values - values.sum() / tokens

    return centred(inputs.log_probs) * centred(inputs.advantages)


def token_budget(response_mask: Tensor, share: float) -> int:
    """The number of tokens in a share of the mini-batch, rounded down, at least one."""
    return max(1, int(share * int(response_mask.sum())))


def smallest(candidates: Tensor, uniforms: Tensor, count: int) -> Tensor:
    """The ``count`` (at least 1) candidates with the smallest numbers, or all candidates if fewer; (B, T) bool."""
    numbers = uniforms[candidates]
    if len(numbers) <= count:
        return candidates
    return candidates & (uniforms <= numbers.kthvalue(count).values)
