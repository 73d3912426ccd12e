"""Optimal token baseline (OTB): a separate baseline for each token, weighted by the gradients so far.

With t counting the policy's own tokens of a response, pi_t the probability of the sampled token, and all sums over the
responses j of the group that have a t-th token::

    G_t = sum_(t' >= t) r_t'                         the return
    w_t = 1 - 2 pi_t + sum_v pi_t(v)^2               squared norm of the gradient of log pi_t by the logits
    W_t = sum_(t' <= t) c_t'^2 w_t'                  running sum, the t-th token included
    B_t = sum_j G_jt W_jt / sum_j W_jt               0 where every W is 0
    A_it = G_it - B_t

Li et al. 2026, "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL", arXiv 2602.07078: B_t is the
baseline of least variance, w_t its Logit-Gradient Proxy. The returns are G. c_t is the token's weight from rollout
correction, or 1: c_t scales the gradient of the token's term, and is 0 at a rejected token.

* Zero tail: if only one response of the group has a t-th token, the formula makes its return its own baseline. With
  ``handle_zero_tail``, as in the authors' code, the baseline there is 0 and A_t = G_t; without, A_t = 0.
* Several turns: tokens of tools and users are removed first, so that equal positions are compared, and restored
  with advantage and return 0. Frameworks in common use have a separate estimator for this.
* A group with one scored response has no comparison: its advantage is 0, not its return.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_grpo.advantages.options import OptimalTokenBaselineOptions
from corerl_torch.statistics import (
    compact,
    discounted_sums,
    group_sums,
    spread,
)


def optimal_token_baseline(inputs: AdvantageInputs, options: OptimalTokenBaselineOptions) -> Advantages:
    """Return minus the energy-weighted mean return of the group at the same token, and the return."""
    if inputs.log_probs is None or inputs.sum_pi_squared is None:
        raise MissingInputError("sum_pi_squared", 'needs={"sum_pi_squared"}')
    mask, ids = inputs.response_mask, inputs.group_ids
    present = compact(mask, mask)  # from here on column t holds t-th tokens
    returns = discounted_sums(compact(inputs.rewards, mask), present, 1.0)
    proxy = (1 - 2 * inputs.log_probs.exp() + inputs.sum_pi_squared).clamp(min=0)  # negative only by rounding
    if inputs.rollout_weights is not None:
        proxy = inputs.rollout_weights.square() * proxy
    energy = torch.where(present, compact(proxy, mask).cumsum(dim=1), 0.0)
    total = group_sums(energy, ids)
    baseline = group_sums(energy * returns, ids) / total.clamp(min=torch.finfo(total.dtype).tiny)

    responses = group_sums(present.long(), ids)  # responses of the group with a t-th token
    if options.handle_zero_tail:
        baseline = torch.where(responses > 1, baseline, 0.0)
    advantages = torch.where(present & (responses[:, :1] > 1), returns - baseline, 0.0)
    return Advantages(spread(advantages, mask), spread(returns, mask))
