"""PPO's clipped surrogate in few passes over memory, for the losses that are built on it."""

import torch
from torch import Tensor

from corerl.contracts.losses import Mean


def clipped_surrogate(advantages: Tensor, ratio: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """max(-A rho, -A clip(rho, low, high)), and where A < 0 at most -A dual.

    The same, without comparing terms: -A min(rho, high) where A > 0, and -A clip(rho, low, dual) where A < 0.

    Args:
        advantages: (b, T).
        ratio: (b, T), not negative; may carry a gradient.
        low, high: bounds of the clip, low <= 1 <= high.
        dual: bound of the dual clip, greater than 1; None for none.

    Returns:
        (b, T).
    """
    gains = advantages.clamp(min=0)
    losses = advantages.clamp(max=0).neg_()
    return torch.addcmul(losses * ratio.clamp(low, dual), gains, ratio.clamp(max=high), value=-1)


def clip_effect(terms: Tensor, advantages: Tensor, ratio: Tensor) -> Tensor:
    """(b, T), the term less -A rho, without gradient: above 0 where the clip acted, below where the dual clip did."""
    return (advantages * ratio.detach()).add_(terms.detach())


def clip_fractions(effect: Tensor, response_mask: Tensor) -> tuple[Mean, Mean]:
    """Shares of the response tokens on which the clip acted, and on which the dual clip did."""
    # On CPU a comparison that writes floats is vectorised and one that writes bools is not; so is a cast from uint8.
    raised = torch.gt(effect, 0, out=torch.empty_like(effect))
    lowered = torch.lt(effect, 0, out=torch.empty_like(effect))
    mask = response_mask.contiguous().view(torch.uint8).to(effect.dtype).flatten()
    tokens = response_mask.sum(dtype=torch.int32)
    return Mean(torch.dot(raised.flatten(), mask), tokens), Mean(torch.dot(lowered.flatten(), mask), tokens)
