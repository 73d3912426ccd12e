"""Distillation: the policy learns from the distributions of a teacher at its own responses.

With P and Q the distributions of policy and teacher after the same prefix, D the chosen divergence::

    term = coefficient D(P, Q) [ - A rho ]                          form full, top_k
    A'   = coefficient (log Q(y) - log P_old(y)) [ + A ]
    term = -A' rho                                                  form sampled

with rho = pi / pi_old of the sampled token y; the parts in brackets with ``use_task_reward``. The prefixes are held
fixed: no gradient passes through the choice of the tokens before. ``full`` and ``top_k`` are exact at each prefix;
on-policy the mean gradient of ``sampled`` is that of reverse_kl with ``full``.

Agarwal et al. 2023 (GKD), arXiv 2306.13649, equations 2 to 4; Lu and Thinking Machines Lab 2025, "On-Policy
Distillation", https://thinkingmachines.ai/blog/on-policy-distillation/ for ``sampled``. The log-ratio of rho is clamped
to ±20 before the exponential.
"""

import torch
from torch import Tensor

from corerl.contracts.losses import LossOutput, masked_mean
from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.errors import MissingInputError
from corerl_distill.options import DistillOptions

LOG_RATIO_LIMIT = 20.0


def distill(inputs: PolicyLossInputs, options: DistillOptions) -> LossOutput:
    """Metrics: ``divergence``, its mean; of ``sampled`` the mean of log pi_old - log pi_teacher."""
    if inputs.of_logits is None:
        raise MissingInputError("of_logits", 'of_logits="corerl_distill.of_logits:make"')
    if options.form == "sampled":
        distance = inputs.old_log_probs - inputs.of_logits["teacher_log_probs"]
        advantages = -options.coefficient * distance
        terms = _policy_gradient(inputs, advantages + inputs.advantages if options.use_task_reward else advantages)
    else:
        distance = inputs.of_logits["divergence"]
        terms = options.coefficient * distance
        if options.use_task_reward:
            terms = terms + _policy_gradient(inputs, inputs.advantages)
    return LossOutput(terms, {"divergence": masked_mean(distance.detach(), inputs.response_mask)})


def _policy_gradient(inputs: PolicyLossInputs, advantages: Tensor) -> Tensor:
    log_ratio = inputs.log_probs - inputs.old_log_probs
    return -advantages * torch.clamp(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
