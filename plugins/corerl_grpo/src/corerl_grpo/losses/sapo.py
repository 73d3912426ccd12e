"""SAPO: a soft gate in place of the clip.

With rho = pi / pi_old::

    tau = tau_pos where A > 0, tau_neg elsewhere
    term = -A sigmoid(tau (rho - 1)) 4 / tau

The gradient is the gradient of -A rho times 4 p (1 - p), with p the sigmoid: 1 at rho = 1, falling on both sides.

Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv 2511.20347, section 3, with the temperatures of its
experiments; aggregated by ``seq-mean-token-mean``. The log-ratio is clamped to ±20 before the exponential.
"""

import torch

from corerl.contracts.losses import masked_mean
from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.options import SapoOptions
from corerl_grpo.losses.ratio import importance_ratio


def sapo(inputs: PolicyLossInputs, options: SapoOptions) -> LossOutput:
    """Metrics: ``gate``, the mean of 4 p (1 - p): 1 on-policy, 0 if no token has a gradient left."""
    advantages = inputs.advantages
    tau = torch.full_like(advantages, options.tau_neg).masked_fill(advantages > 0, options.tau_pos)
    ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs)
    gate = torch.sigmoid(tau * (ratio - 1))
    terms = -advantages * gate * 4 / tau
    fixed = gate.detach()
    return LossOutput(terms, {"gate": masked_mean(4 * fixed * (1 - fixed), inputs.response_mask)})
