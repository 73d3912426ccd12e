"""DPPO with the binary total variation: the clip acts on the probability, not on the ratio.

With rho = pi / pi_old and sg the stop of the gradient::

    term = -A sg(min(rho, clip_ratio_c)) log pi
         = 0      where A > 0 and pi - pi_old > clip_ratio_high, or A <= 0 and pi_old - pi > clip_ratio_low

|pi - pi_old| of the sampled token is the total variation over two outcomes: the sampled token and any other token. A
token outside the bound keeps its gradient if that gradient leads back inside.

Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning", arXiv 2602.04879, its binary approximation;
bounds and cap are from the authors' code. Here pi_old is the policy at the start of the step; in the paper it is the
rollout policy, as with ``algorithm.rollout_correction.bypass_mode``. The log-ratio is clamped to ±20 before the
exponential.
"""

import torch

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.dppo import truncated_policy_gradient
from corerl_grpo.losses.options import DppoTvOptions


def dppo_tv(inputs: PolicyLossInputs, options: DppoTvOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens outside; ``ratio_capfrac``, tokens inside whose weight was capped."""
    rise = inputs.log_probs.detach().exp() - inputs.old_log_probs.exp()
    outside = torch.where(inputs.advantages > 0, rise > options.clip_ratio_high, rise < -options.clip_ratio_low)
    return truncated_policy_gradient(inputs, outside, options.clip_ratio_c)
