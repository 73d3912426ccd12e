"""Shared by both forms of DPPO: the truncated policy gradient on the tokens inside the trust region."""

import torch
from torch import Tensor

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.ratio import importance_ratio, share


def truncated_policy_gradient(inputs: PolicyLossInputs, outside: Tensor, cap: float) -> LossOutput:
    """-A sg(min(rho, cap)) log pi, and 0 where ``outside``, (b, T) bool, is true."""
    ratio = importance_ratio(inputs.log_probs.detach(), inputs.old_log_probs)
    weights = torch.where(outside, 0.0, ratio.clamp(max=cap))
    metrics = {
        "pg_clipfrac": share(outside, inputs.response_mask),
        "ratio_capfrac": share((ratio > cap) & ~outside, inputs.response_mask),
    }
    return LossOutput(-inputs.advantages * weights * inputs.log_probs, metrics)
