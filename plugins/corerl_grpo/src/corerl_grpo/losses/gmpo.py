"""GMPO: the geometric mean of the tokens' ratios, after each ratio is clipped.

With d = log pi - log pi_old clamped to ±20 and n the response's number of tokens::

    c_t = min(d_t, clip_ratio_high)      where A_t > 0
        = max(d_t, -clip_ratio_low)      elsewhere
    term_t = -A_t exp(sum_t c_t / n)

Each token is clipped before the mean, on the side to which its advantage pushes: an outlier loses its gradient, and
the other tokens keep theirs. With the aggregation ``seq-mean-token-mean`` and one advantage for a response this is the
paper's objective, value and gradient; any other aggregation changes the weights of the terms.

Zhao et al. 2025, "Geometric-Mean Policy Optimization", arXiv 2507.20673, section 3; the clip ratios bound the
log-ratio, the paper's range exp(±0.4). Frameworks in common use average over the sequences of a micro-batch with every
configured aggregation.
"""

import torch

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.options import GmpoOptions
from corerl_grpo.losses.ratio import MAX_LOG_RATIO, share


def gmpo(inputs: PolicyLossInputs, options: GmpoOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose ratio was clipped."""
    mask = inputs.response_mask
    advantages = torch.where(mask, inputs.advantages, 0.0)  # every term reaches every token of its row
    log_ratio = (inputs.log_probs - inputs.old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    above, below = log_ratio.clamp(max=options.clip_ratio_high), log_ratio.clamp(min=-options.clip_ratio_low)
    clipped = torch.where(advantages > 0, above, below)
    mean = torch.where(mask, clipped, 0.0).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    terms = -advantages * mean.exp()
    return LossOutput(terms, {"pg_clipfrac": share(clipped.detach() != log_ratio.detach(), mask)})
