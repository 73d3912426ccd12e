"""The clipped surrogate of PPO, with two widths and the dual clip.

With d = log pi - log pi_old and rho = exp(d)::

    M = max(-A rho, -A clip(rho, 1 - clip_ratio_low, 1 + clip_ratio_high))
    term = M                            where A >= 0
         = min(M, -A clip_ratio_c)      where A < 0

Schulman et al. 2017, arXiv 1707.06347, equation 7; two widths: Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 10;
dual clip: Ye et al. 2020, arXiv 1912.09729, equation 5. d is clamped to ±20 before the exponential.
"""

import torch

from corerl.objective import masked_mean
from corerl.registry.policy_losses import PolicyLossInputs, PolicyLossOutput
from corerl_grpo.options import VanillaOptions


def vanilla(inputs: PolicyLossInputs, options: VanillaOptions) -> PolicyLossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose ratio was clipped; ``pg_clipfrac_lower``, tokens held by the dual clip."""
    advantages, mask = inputs.advantages, inputs.response_mask
    ratio = (inputs.log_probs - inputs.old_log_probs).clamp(-20.0, 20.0).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    surrogate = torch.maximum(unclipped, clipped)
    bound = -advantages * options.clip_ratio_c
    terms = torch.where(advantages < 0, torch.minimum(surrogate, bound), surrogate)
    metrics = {
        "pg_clipfrac": masked_mean((clipped > unclipped).float(), mask),
        "pg_clipfrac_lower": masked_mean(((advantages < 0) & (surrogate > bound)).float(), mask),
    }
    return PolicyLossOutput(terms, metrics)
