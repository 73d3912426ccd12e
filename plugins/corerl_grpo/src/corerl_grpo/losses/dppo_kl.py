"""DPPO with the binary KL divergence: the clip acts on a divergence of the policies, not on the ratio.

With rho = pi / pi_old and sg the stop of the gradient::

    D = pi_old log(pi_old / pi) + (1 - pi_old) log((1 - pi_old) / (1 - pi))
    term = -A sg(min(rho, clip_ratio_c)) log pi
         = 0      where A > 0, pi > pi_old and D > clip_ratio_high, or A <= 0, pi < pi_old and D > clip_ratio_low

D is KL(pi_old || pi) over two outcomes: the sampled token and any other token. A token outside the bound keeps its
gradient if that gradient leads back inside.

Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning", arXiv 2602.04879, its binary approximation;
bounds and cap are from the authors' code. Here pi_old is the policy at the start of the step; in the paper it is the
rollout policy, as with ``algorithm.rollout_correction.bypass_mode``. The log-ratio is clamped to ±20 before the
exponential.
"""

import torch
from torch import Tensor

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.dppo import truncated_policy_gradient
from corerl_grpo.losses.options import DppoKlOptions


def dppo_kl(inputs: PolicyLossInputs, options: DppoKlOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens outside; ``ratio_capfrac``, tokens inside whose weight was capped."""
    log_probs, old_log_probs = inputs.log_probs.detach(), inputs.old_log_probs
    divergence = binary_kl(old_log_probs, log_probs)
    rising = (log_probs > old_log_probs) & (divergence > options.clip_ratio_high)
    falling = (log_probs < old_log_probs) & (divergence > options.clip_ratio_low)
    outside = torch.where(inputs.advantages > 0, rising, falling)
    return truncated_policy_gradient(inputs, outside, options.clip_ratio_c)


def binary_kl(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """KL divergence of two distributions over {this token, another}, exact for log-probs near 0; may be infinite."""
    rest, other_rest = -torch.expm1(log_probs), -torch.expm1(other_log_probs)  # 1 - p without cancellation
    return log_probs.exp() * (log_probs - other_log_probs) + torch.xlogy(rest, rest) - torch.xlogy(rest, other_rest)
