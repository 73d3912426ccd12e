"""Clip-Cov: PPO's clip, and no gradient for a few random tokens with a high covariance.

With rho = pi / pi_old, N the mini-batch's number of response tokens and cov the covariance of a token
(:func:`corerl_grpo.losses.covariance.token_covariance`)::

    I = clip_cov_ratio · N tokens drawn among those with clip_cov_lb <= cov <= clip_cov_ub
    term = 0                                                                     on I
         = max(-A rho, -A clip(rho, 1 - clip_ratio_low, 1 + clip_ratio_high))    elsewhere

Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617,
equations 10 to 12. From the authors' code, not the equations: the clip; clipped tokens are not drawn; at least one
token is drawn. Frameworks in common use draw within each micro-batch; here the mini-batch is used. The
log-ratio is clamped to ±20 before the exponential.
"""

import torch
from torch import Tensor

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl.errors import MissingInputError
from corerl_grpo.losses.covariance import smallest, token_budget, token_covariance
from corerl_grpo.losses.options import ClipCovOptions
from corerl_grpo.losses.ratio import importance_ratio, share


def clip_cov(inputs: PolicyLossInputs, options: ClipCovOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose ratio was clipped; ``clip_cov_frac``, tokens that were drawn."""
    if inputs.selected is None:
        raise MissingInputError("selected", "select_tokens=…")
    unclipped, clipped = _surrogates(inputs, options)
    terms = torch.where(inputs.selected, 0.0, torch.maximum(unclipped, clipped))
    mask = inputs.response_mask
    metrics = {"pg_clipfrac": share(clipped > unclipped, mask), "clip_cov_frac": share(inputs.selected, mask)}
    return LossOutput(terms, metrics)


def select_tokens(inputs: PolicyLossInputs, uniforms: Tensor, options: ClipCovOptions) -> Tensor:
    """Draw I: the candidates with the smallest uniforms."""
    mask, covariance = inputs.response_mask, token_covariance(inputs)
    unclipped, clipped = _surrogates(inputs, options)
    inside = (covariance >= options.clip_cov_lb) & (covariance <= options.clip_cov_ub)
    candidates = mask & inside & (clipped <= unclipped)
    return smallest(candidates, uniforms, token_budget(mask, options.clip_cov_ratio))


def _surrogates(inputs: PolicyLossInputs, options: ClipCovOptions) -> tuple[Tensor, Tensor]:
    """-A rho, and -A rho with rho clipped."""
    ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs)
    clipped = ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    return -inputs.advantages * ratio, -inputs.advantages * clipped
