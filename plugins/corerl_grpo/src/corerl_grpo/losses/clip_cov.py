"""Clip-Cov: PPO's clip, and no gradient for a random few of the tokens with a high covariance.

With rho = pi / pi_old, N the mini-batch's number of response tokens and cov the covariance of a token
(:func:`corerl_grpo.losses.covariance.token_covariance`)::

    I = clip_cov_ratio · N tokens drawn among those with clip_cov_lb <= cov <= clip_cov_ub
    term = 0                                                                     on I
         = max(-A rho, -A clip(rho, 1 - clip_ratio_low, 1 + clip_ratio_high))    elsewhere

Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617,
equations 10 to 12. As in the authors' code, not in the equations: the clip, tokens that it clipped are not drawn, and
one token is drawn at least. Frameworks in common use draw from a micro-batch at a time; here it is the mini-batch. The
log-ratio is clamped to ±20 before the exponential.
"""

import torch
from torch import Tensor

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl.errors import MissingInputError
from corerl_grpo.losses.clip import clip_effect, clip_fractions, clipped_surrogate
from corerl_grpo.losses.covariance import smallest, token_budget, token_covariance
from corerl_grpo.losses.options import ClipCovOptions
from corerl_grpo.losses.ratio import importance_ratio, share


def clip_cov(inputs: PolicyLossInputs, options: ClipCovOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose ratio was clipped; ``clip_cov_frac``, tokens that were drawn."""
    if inputs.selected is None:
        raise MissingInputError("selected", "select_tokens=…")
    advantages, mask = inputs.advantages, inputs.response_mask
    ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs)
    terms = clipped_surrogate(advantages, ratio, 1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    clipped, _ = clip_fractions(clip_effect(terms, advantages, ratio), mask)
    metrics = {"pg_clipfrac": clipped, "clip_cov_frac": share(inputs.selected, mask)}
    return LossOutput(terms.masked_fill(inputs.selected, 0.0), metrics)


def select_tokens(inputs: PolicyLossInputs, uniforms: Tensor, options: ClipCovOptions) -> Tensor:
    """Draw I: the candidates with the smallest uniforms."""
    advantages, mask = inputs.advantages, inputs.response_mask
    ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs)
    above, below = ratio > 1 + options.clip_ratio_high, ratio < 1 - options.clip_ratio_low
    clipped = torch.where(advantages > 0, above, below & (advantages < 0))
    covariance = token_covariance(inputs)
    candidates = mask & ~clipped & (covariance >= options.clip_cov_lb) & (covariance <= options.clip_cov_ub)
    return smallest(candidates, uniforms, token_budget(mask, options.clip_cov_ratio))
