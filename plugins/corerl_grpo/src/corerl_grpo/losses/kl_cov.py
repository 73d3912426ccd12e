"""KL-Cov: a KL term on the few tokens with the largest covariance.

With d = log pi - log pi_old clamped to ±20, rho = exp(d), N the mini-batch's number of response tokens and cov the
covariance of a token (:func:`corerl_grpo.losses.covariance.token_covariance`)::

    I = the kl_cov_ratio · N tokens with the largest cov
    term = -A rho + ppo_kl_coef (rho - 1 - d)      on I
         = -A rho                                  elsewhere

Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617,
equations 10, 13 and 14. rho - 1 - d is the estimator k3 (Schulman 2020, "Approximating KL divergence") of the
KL(pi_old || pi) of equation 14: over tokens of pi_old the mean of the term is the divergence, and the mean of its
gradient, (rho - 1) grad log pi, is the divergence's gradient. It is 0 while pi is pi_old.

The authors' code, and frameworks in common use, take |d|: ``kl_estimator: abs``. Its gradient is ±1 even for tiny d. In
the first update of a step d is rounding noise, so the sign is random and changes with the division of the mini-batch.

As in the authors' code, at least one token is chosen. Frameworks in common use choose within each micro-batch; here
the mini-batch is used.
"""

import torch
from torch import Tensor

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl.errors import MissingInputError
from corerl_grpo.losses.covariance import smallest, token_budget, token_covariance
from corerl_grpo.losses.options import KlCovOptions
from corerl_grpo.losses.ratio import MAX_LOG_RATIO, importance_ratio, share


def kl_cov(inputs: PolicyLossInputs, options: KlCovOptions) -> LossOutput:
    """Metrics: ``kl_cov_frac``, tokens with the KL term."""
    if inputs.selected is None:
        raise MissingInputError("selected", "select_tokens=…")
    surrogate = -inputs.advantages * importance_ratio(inputs.log_probs, inputs.old_log_probs)
    divergence = _divergence(inputs.log_probs - inputs.old_log_probs, options)
    penalty = torch.where(inputs.selected, options.ppo_kl_coef * divergence, 0.0)
    return LossOutput(surrogate + penalty, {"kl_cov_frac": share(inputs.selected, inputs.response_mask)})


def _divergence(log_ratio: Tensor, options: KlCovOptions) -> Tensor:
    if options.kl_estimator == "abs":
        return log_ratio.abs()
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio.expm1() - log_ratio


def select_tokens(inputs: PolicyLossInputs, uniforms: Tensor, options: KlCovOptions) -> Tensor:
    """Choose I; between tokens of equal covariance the smallest uniforms decide."""
    mask = inputs.response_mask
    covariance = token_covariance(inputs)
    values = covariance[mask]
    if not len(values):
        return mask
    count = token_budget(mask, options.kl_cov_ratio)
    threshold = values.topk(count).values[-1]
    above = mask & (covariance > threshold)
    ties = mask & (covariance == threshold)
    return above | smallest(ties, uniforms, count - int(above.sum()))
