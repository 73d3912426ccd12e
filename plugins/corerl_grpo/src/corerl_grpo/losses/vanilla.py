"""The clipped surrogate of PPO, with two widths and the dual clip.

With d = log pi - log pi_old and rho = exp(d)::

    M = max(-A rho, -A clip(rho, 1 - clip_ratio_low, 1 + clip_ratio_high))
    term = M                            where A >= 0
         = min(M, -A clip_ratio_c)      where A < 0

Schulman et al. 2017, arXiv 1707.06347, equation 7; two widths: Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 10;
dual clip: Ye et al. 2020, arXiv 1912.09729, equation 5. d is clamped to ±20 before the exponential.
"""

from corerl.registry.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.clip import clip_fractions, clipped_surrogate
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.ratio import importance_ratio


def vanilla(inputs: PolicyLossInputs, options: VanillaOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose ratio was clipped; ``pg_clipfrac_lower``, tokens held by the dual clip."""
    advantages = inputs.advantages
    ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs)
    low, high = 1 - options.clip_ratio_low, 1 + options.clip_ratio_high
    terms = clipped_surrogate(advantages, ratio, low, high, options.clip_ratio_c)
    clipped, held = clip_fractions(terms, advantages, ratio, inputs.response_mask)
    return LossOutput(terms, {"pg_clipfrac": clipped, "pg_clipfrac_lower": held})
