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

import torch

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.ratio import importance_ratio, share


def vanilla(inputs: PolicyLossInputs, options: VanillaOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose ratio was clipped; ``pg_clipfrac_lower``, tokens held by the dual clip."""
    advantages, mask = inputs.advantages, inputs.response_mask
    ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs)
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    surrogate = torch.maximum(unclipped, clipped)
    bounded = torch.minimum(surrogate, -advantages * options.clip_ratio_c)
    terms = torch.where(advantages < 0, bounded, surrogate)
    metrics = {"pg_clipfrac": share(terms > unclipped, mask), "pg_clipfrac_lower": share(terms < unclipped, mask)}
    return LossOutput(terms, metrics)
