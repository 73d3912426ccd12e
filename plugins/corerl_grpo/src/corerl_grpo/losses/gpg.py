"""GPG: the plain policy gradient.

::

    term = -A log pi

Chu et al. 2025, "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning", arXiv 2504.02546;
aggregated by ``token-mean``, with the advantage estimator ``gpg``. Exact while the policy equals the policy that
generated the responses; with several updates a step, ``reinforce`` corrects for the difference.
"""

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs


def gpg(inputs: PolicyLossInputs) -> LossOutput:
    """No metrics: nothing is clipped or weighed."""
    return LossOutput(-inputs.advantages * inputs.log_probs)
