"""KL-Cov: a KL term on the few tokens with the largest covariance.

With d = log pi - log pi_old, rho = exp(d), N the mini-batch's number of response tokens and cov the covariance of a
token (:func:`corerl_grpo.losses.covariance.token_covariance`)::

    I = the kl_cov_ratio · N tokens with the largest cov
    term = -A rho + ppo_kl_coef |d|      on I
         = -A rho                        elsewhere

Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617,
equations 10, 13 and 14. As in the authors' code, |d| stands for the KL divergence, and one token is chosen at least.
Frameworks in common use choose from a micro-batch at a time; here it is the mini-batch. d is clamped to ±20 before the
exponential.
"""

from torch import Tensor

from corerl.errors import MissingInputError
from corerl.registry.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.covariance import smallest, token_budget, token_covariance
from corerl_grpo.losses.options import KlCovOptions
from corerl_grpo.losses.ratio import importance_ratio, share


def kl_cov(inputs: PolicyLossInputs, options: KlCovOptions) -> LossOutput:
    """Metrics: ``kl_cov_frac``, tokens with the KL term."""
    if inputs.selected is None:
        raise MissingInputError("selected", "select_tokens=…")
    terms = -inputs.advantages * importance_ratio(inputs.log_probs, inputs.old_log_probs)
    distance = (inputs.log_probs - inputs.old_log_probs).abs()
    terms = terms + (options.ppo_kl_coef * distance).masked_fill(~inputs.selected, 0.0)
    return LossOutput(terms, {"kl_cov_frac": share(inputs.selected, inputs.response_mask)})


def select_tokens(inputs: PolicyLossInputs, uniforms: Tensor, options: KlCovOptions) -> Tensor:
    """Choose I; among tokens of one covariance the smallest uniforms decide."""
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
