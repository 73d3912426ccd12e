"""Optimal token baseline (OTB): at each token a baseline of its own, weighted by the gradients so far.

With t counting the policy's own tokens of a response, pi_t the probability of the sampled token, and all sums over the
responses j of the group that have a t-th token::

    G_t = sum_(t' >= t) r_t'                         the return
    w_t = 1 - 2 pi_t + sum_v pi_t(v)^2               squared norm of the gradient of log pi_t by the logits
    W_t = sum_(t' <= t) c_t'^2 w_t'                  running sum, the t-th token included
    B_t = sum_j G_jt W_jt / sum_j W_jt               0 where every W is 0
    A_it = G_it - B_t

Li et al. 2026, "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL", arXiv 2602.07078: B_t is the
baseline of least variance, w_t its Logit-Gradient Proxy. The returns are G. c_t is the weight that rollout correction
gives a token, 1 without: the gradient of its term is c_t times as long, and at a rejected token it is 0.

* Zero tail: where one response of the group is left, the formula makes its return its own baseline. With
  ``handle_zero_tail``, as in the authors' code, the baseline there is 0 and A_t = G_t; without, A_t = 0.
* Several turns: tokens of tools and users are taken out first, so that t-th tokens are compared with t-th tokens, and
  put back with advantage and return 0. Frameworks in common use have this as an estimator of its own.
* A group with one scored response has nothing to compare: its advantage is 0, not its return.
"""

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_grpo.advantages.options import OptimalTokenBaselineOptions
from corerl_torch.statistics import (
    compact,
    discounted_row_sums,
    group_maxima,
    group_sums,
    has_holes,
    row_counts,
    spread,
)


def optimal_token_baseline(inputs: AdvantageInputs, options: OptimalTokenBaselineOptions) -> Advantages:
    """Return minus the energy-weighted mean return of the group at the same token, and the return."""
    if inputs.log_probs is None or inputs.sum_pi_squared is None:
        raise MissingInputError("sum_pi_squared", "needs_sum_pi_squared=True")
    mask = inputs.response_mask
    per_token: tuple[Tensor, ...] = (inputs.rewards, inputs.log_probs, inputs.sum_pi_squared)
    if inputs.rollout_weights is not None:
        per_token = (*per_token, inputs.rollout_weights)
    if not has_holes(mask):
        return _right_padded(per_token, mask, inputs.group_ids, options.handle_zero_tail)
    left = tuple(compact(values, mask) for values in per_token)
    advantages, returns = _right_padded(left, compact(mask, mask), inputs.group_ids, options.handle_zero_tail)
    return Advantages(spread(advantages, mask), spread(returns, mask))


def _right_padded(per_token: tuple[Tensor, ...], mask: Tensor, ids: Tensor, handle_zero_tail: bool) -> Advantages:
    """For a mask without holes; what is (B, T) is written over where it can be."""
    rewards, log_probs, sum_pi_squared, *rollout_weights = per_token
    returns = discounted_row_sums(rewards, 1.0)
    zero = returns.new_zeros(())
    energy = log_probs.exp()
    torch.sub(sum_pi_squared, energy, alpha=2, out=energy).add_(1).clamp_(min=0)  # above 0 but for rounding
    for weights in rollout_weights:
        energy *= weights.square()
    torch.where(mask, energy.cumsum_(dim=1), zero, out=energy)
    groups = int(ids.max()) + 1
    total = returns.new_zeros(groups, mask.shape[1]).index_add_(0, ids, energy)
    weighted = torch.zeros_like(total).index_add_(0, ids, energy.mul_(returns))
    baseline = weighted.div_(total.clamp_(min=torch.finfo(total.dtype).tiny))

    second = _second_longest(row_counts(mask).to(torch.float64), ids)
    if handle_zero_tail:
        second_of_group = second.new_zeros(groups).scatter_(0, ids, second)
        baseline *= torch.arange(mask.shape[1], device=ids.device) < second_of_group[:, None]
    advantages = torch.index_select(baseline, 0, ids, out=energy)
    torch.sub(returns, advantages, out=advantages)
    torch.where(mask, advantages, zero, out=advantages)
    advantages[second == 0] = 0
    return Advantages(advantages, returns)


def _second_longest(lengths: Tensor, ids: Tensor) -> Tensor:
    """The second largest length of each row's group, (B,); 0 where there is no second response."""
    largest = group_maxima(lengths, ids)
    is_largest = lengths == largest
    others = group_maxima(torch.where(is_largest, 0.0, lengths), ids)
    return torch.where(group_sums(is_largest.to(lengths.dtype), ids) > 1, largest, others)
