"""A2PO: regression of the log-ratio of a response to the reference onto its optimal advantage.

With R = sum_t log pi_t - log pi_ref,t of the whole response::

    term_t = (beta R - A_t)²

A is the score minus the optimal value of the prompt (advantage estimator ``a2po``). With the aggregation
``seq-mean-token-mean`` and one advantage for a response this is the paper's loss, value and gradient. The loss is 0 at
the optimum of the objective E[r] - beta KL(pi || pi_ref); it needs no importance ratio, no clip and no KL term.

Brantley et al. 2025, "Accelerating RL for LLM Reasoning with Optimal Advantage Regression" (A*-PO), arXiv 2505.20686,
section 3, stage 2; ``beta`` is beta_2 of its experiments.
"""

import torch

from corerl.contracts.losses import masked_mean
from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl.errors import MissingInputError
from corerl_grpo.losses.options import A2poOptions


def a2po(inputs: PolicyLossInputs, options: A2poOptions) -> LossOutput:
    """Metrics: ``implicit_reward``, the mean of beta R over tokens."""
    if inputs.ref_log_probs is None:
        raise MissingInputError("ref_log_probs", 'needs={"ref"}')
    mask = inputs.response_mask
    log_ratio = torch.where(mask, inputs.log_probs - inputs.ref_log_probs, 0.0).sum(dim=1, keepdim=True)
    implicit = (options.beta * log_ratio).expand_as(mask)
    advantages = torch.where(mask, inputs.advantages, 0.0)  # every term reaches every token of its row
    return LossOutput((implicit - advantages).square(), {"implicit_reward": masked_mean(implicit.detach(), mask)})
