"""On-policy distillation: the policy learns from a teacher's log-probs of its own responses.

The reference model is the teacher. With rho = pi / pi_old::

    A' = coefficient (log pi_ref - log pi_old) + A      the A with use_task_reward
    term = -A' rho

On-policy the mean of log pi_old - log pi_ref over the tokens sampled after a prefix is KL(pi || pi_ref) of the next
token, the reverse KL, and the mean gradient of the terms is that KL's gradient with the prefixes held fixed.

Agarwal et al. 2023 (GKD), arXiv 2306.13649, section 3; as advantages of a policy gradient: Lu and Thinking Machines Lab
2025, "On-Policy Distillation", https://thinkingmachines.ai/blog/on-policy-distillation/. The log-ratio is clamped to
±20 before the exponential.
"""

from corerl.contracts.losses import masked_mean
from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl.errors import MissingInputError
from corerl_grpo.losses.options import OpdOptions
from corerl_grpo.losses.ratio import importance_ratio


def opd(inputs: PolicyLossInputs, options: OpdOptions) -> LossOutput:
    """Metrics: ``teacher_kl``, the mean of log pi_old - log pi_ref."""
    if inputs.ref_log_probs is None:
        raise MissingInputError("ref_log_probs", 'needs={"ref"}')
    distance = inputs.old_log_probs - inputs.ref_log_probs
    advantages = -options.coefficient * distance
    if options.use_task_reward:
        advantages = advantages + inputs.advantages
    terms = -advantages * importance_ratio(inputs.log_probs, inputs.old_log_probs)
    return LossOutput(terms, {"teacher_kl": masked_mean(distance, inputs.response_mask)})
