"""CISPO: the importance weight is clipped, and every token keeps its gradient.

With rho = pi / pi_old and sg the stop of the gradient::

    term = -sg(clip(rho, 1 - clip_ratio_low, 1 + clip_ratio_high)) A log pi

MiniMax 2025, "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", arXiv 2506.13585, section
3.1, aggregated by ``token-mean``, without a KL term. The paper uses no lower bound, so ``clip_ratio_low`` is 1; the
paper gives no upper bound. Frameworks in common use clip at 1 ± 0.2, or only above 1 to 6. The log-ratio is clamped to
±20
before the exponential.
"""

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.options import CispoOptions
from corerl_grpo.losses.ratio import importance_ratio, share


def cispo(inputs: PolicyLossInputs, options: CispoOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose weight was clipped."""
    ratio = importance_ratio(inputs.log_probs.detach(), inputs.old_log_probs)
    weights = ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    terms = -weights * inputs.advantages * inputs.log_probs
    return LossOutput(terms, {"pg_clipfrac": share(weights != ratio, inputs.response_mask)})
