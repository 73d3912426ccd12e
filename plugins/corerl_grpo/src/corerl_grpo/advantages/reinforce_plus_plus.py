"""REINFORCE++: discounted returns, normalised over the whole batch.

With r_t the token rewards and t' the policy's next own token after t::

    R_t = r_t + gamma R_t'
    A_t = (R_t - mean(R)) / sqrt(var(R) + 1e-8)     over all tokens of the batch

Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Normalization", arXiv 2501.03262.
The paper uses gamma = 1. Tool and user tokens are skipped: the return passes over them without a discount. Frameworks
in common use discount at every position, or restart the sum at 0 there. The returns are R. r_t includes the KL penalty
of the reward, so later tokens carry less of it.

Responses are not compared within a group, so one response to a prompt is enough.
"""

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.options import ReinforcePlusPlusOptions
from corerl_torch.statistics import discounted_sums, whiten


def reinforce_plus_plus(inputs: AdvantageInputs, options: ReinforcePlusPlusOptions) -> Advantages:
    """Whitened returns, and the returns."""
    returns = discounted_sums(inputs.rewards, inputs.response_mask, options.gamma)
    return Advantages(whiten(returns, inputs.response_mask), returns)
