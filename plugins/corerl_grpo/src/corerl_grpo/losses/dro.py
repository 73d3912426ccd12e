"""DRO: the policy gradient with a quadratic penalty on the log-ratio, for responses of any age.

With d = log pi - log pi_old::

    term = -(A log pi - beta d² / 2)

Richemond et al. 2024, "Offline Regularised Reinforcement Learning for Large Language Models Alignment", arXiv
2405.19107: minus the policy gradient of its loss ½ (r - V - beta d)², over beta, with A = r - V. The paper takes d
over the whole response, against a reference model. Frameworks in common use, and this loss, take d for each token,
against the policy that generated. ``beta`` has the default of those frameworks, not of the paper.
"""

from corerl.contracts.losses import masked_mean
from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.options import DroOptions


def dro(inputs: PolicyLossInputs, options: DroOptions) -> LossOutput:
    """Metrics: ``dro_penalty``, the mean of beta d² / 2."""
    penalty = options.beta * (inputs.log_probs - inputs.old_log_probs).square() / 2
    terms = -(inputs.advantages * inputs.log_probs - penalty)
    return LossOutput(terms, {"dro_penalty": masked_mean(penalty.detach(), inputs.response_mask)})
