"""VESPO: the importance weight of the whole sequence, reshaped by a smooth kernel.

With W = exp(sum_t log pi_t - log pi_old,t), the ratio of the whole response, without a root of its length, and sg the
stop of the gradient::

    k, lambda = k_pos, lambda_pos where A >= 0, k_neg, lambda_neg elsewhere
    phi(W) = W^k exp(lambda (1 - W))
    term_t = -sg(phi(W)) A_t log pi_t

phi(1) is 1: on-policy this is the policy gradient. phi is largest at W = k / lambda and falls to 0 on both sides.

Shen et al. 2026, "VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training", arXiv
2602.10693, section 3.4 (k is c1, lambda is c2), with the constants of the authors' published code, aggregated by
``token-mean`` as there. The paper's behaviour policy is the one that sampled: with
``algorithm.rollout_correction.bypass_mode`` pi_old is the engine's. The sum of log-ratios is clamped to ±20.
"""

import torch

from corerl.contracts.losses import masked_mean
from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.options import VespoOptions
from corerl_grpo.losses.ratio import MAX_LOG_RATIO


def vespo(inputs: PolicyLossInputs, options: VespoOptions) -> LossOutput:
    """Metrics: ``vespo_weight``, the mean of phi."""
    mask, advantages = inputs.response_mask, inputs.advantages
    log_ratio = torch.where(mask, inputs.log_probs.detach() - inputs.old_log_probs, 0.0)
    log_weight = log_ratio.sum(dim=1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    positive = advantages >= 0
    k = torch.where(positive, options.k_pos, options.k_neg).to(log_weight.dtype)
    decay = torch.where(positive, options.lambda_pos, options.lambda_neg).to(log_weight.dtype)
    weights = (k * log_weight + decay * (1 - log_weight.exp())).exp()
    return LossOutput(-weights * advantages * inputs.log_probs, {"vespo_weight": masked_mean(weights, mask)})
