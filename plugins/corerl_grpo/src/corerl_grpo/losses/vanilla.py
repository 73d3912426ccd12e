"""The clipped surrogate of PPO, with two widths and the dual clip.

With d = log pi - log pi_old and rho = exp(d)::

    M = max(-A rho, -A clip(rho, 1 - clip_ratio_low, 1 + clip_ratio_high))
    term = M                            where A >= 0
         = min(M, -A clip_ratio_c)      where A < 0

pi_old is the policy at the start of the step: with one update a step rho is 1 and nothing is clipped.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv 1707.06347, equation 7; two widths: Yu et al.
2025 (DAPO), arXiv 2503.14476, equation 10; dual clip: Ye et al. 2020, "Mastering Complex Control in MOBA Games with
Deep Reinforcement Learning", arXiv 1912.09729, equation 5. d is clamped to ±20 before the exponential.
"""

from typing import Any

import torch
from torch import Tensor

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.clip import clip_effect, clip_fractions, clipped_surrogate
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.ratio import importance_ratio


def vanilla(inputs: PolicyLossInputs, options: VanillaOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose ratio was clipped; ``pg_clipfrac_lower``, tokens held by the dual clip."""
    advantages = inputs.advantages
    low, high = 1 - options.clip_ratio_low, 1 + options.clip_ratio_high
    with torch.no_grad():
        ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs)
        terms = clipped_surrogate(advantages, ratio, low, high, options.clip_ratio_c)
        effect = clip_effect(terms, advantages, ratio)
        clipped, held = clip_fractions(effect, inputs.response_mask)
        slopes = torch.eq(effect, 0, out=effect).mul_(terms)  # -A rho is its own derivative by log pi
    terms = _WithSlopes.apply(inputs.log_probs, terms, slopes)  # type: ignore[no-untyped-call]
    return LossOutput(terms, {"pg_clipfrac": clipped, "pg_clipfrac_lower": held})


class _WithSlopes(torch.autograd.Function):
    """Terms with a known derivative by ``log_probs``: the backward pass reads one tensor instead of seven."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, terms: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(slopes)
        return terms

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return gradient * slopes, None, None
