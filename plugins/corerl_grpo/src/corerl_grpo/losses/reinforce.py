"""REINFORCE with a capped importance weight.

With rho = pi / pi_old and sg the stop of the gradient::

    term = -A sg(min(rho, importance_weight_cap)) log pi
         = -A log pi                                         without use_importance_weights

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", Machine
Learning 8; the capped weight: Espeholt et al. 2018 (IMPALA), arXiv 1802.01561, section 4.1. The log-ratio is clamped to
±20 before the exponential.
"""

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.options import ReinforceOptions
from corerl_grpo.losses.ratio import importance_ratio, share


def reinforce(inputs: PolicyLossInputs, options: ReinforceOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens whose weight was capped, if weights are used."""
    if not options.use_importance_weights:
        return LossOutput(-inputs.advantages * inputs.log_probs)
    ratio = importance_ratio(inputs.log_probs.detach(), inputs.old_log_probs)
    weights = ratio.clamp(max=options.importance_weight_cap)
    terms = -inputs.advantages * weights * inputs.log_probs
    return LossOutput(terms, {"pg_clipfrac": share(weights != ratio, inputs.response_mask)})
