"""GSPO: the importance ratio of the whole sequence.

With d = log pi - log pi_old, n the response's number of tokens and sg the stop of the gradient::

    q = sum_t d_t / n
    s_t = exp(log pi_t - sg(log pi_t) + sg(q))                 exponent at most 10
    term_t = max(-A_t s_t, -A_t clip(s_t, 1 - clip_ratio_low, 1 + clip_ratio_high))

Every s_t has the value of the sequence's ratio exp(q) and the gradient exp(q) · grad log pi_t. With the aggregation
``seq-mean-token-mean`` and one advantage for a response this is the paper's objective, value and gradient.

Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071, equations 5 and 7; token by token: equations
13 and 14 (GSPO-token). The widths are from its section 5.1; frameworks in common use default to PPO's 0.2, which never
clips a mean over a whole response. The bound on the exponent is not in the paper.
"""

import torch

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.options import GspoOptions
from corerl_grpo.losses.ratio import share

MAX_EXPONENT = 10.0


def gspo(inputs: PolicyLossInputs, options: GspoOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens of clipped sequences."""
    advantages, mask, log_probs = inputs.advantages, inputs.response_mask, inputs.log_probs
    fixed = log_probs.detach()
    log_ratio = torch.where(mask, fixed - inputs.old_log_probs, 0.0)
    mean = log_ratio.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    ratio = (log_probs - fixed + mean).clamp(max=MAX_EXPONENT).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high)
    return LossOutput(torch.maximum(unclipped, clipped), {"pg_clipfrac": share(clipped > unclipped, mask)})
