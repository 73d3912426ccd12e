"""REINFORCE++: discounted returns, normalised over the whole batch.

With r_t the token rewards and t' the next token of the policy's own after t::

    R_t = r_t + gamma R_t'
    A_t = (R_t - mean(R)) / sqrt(var(R) + 1e-8)     over all tokens of the batch

Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Normalization", arXiv 2501.03262.
The paper takes gamma = 1. Tool and user tokens are skipped: the return is carried over them, without a discount;
frameworks in common use discount at every position, or set the carry to 0 there. The returns are R. The
KL penalty of the reward is in r_t, so that later tokens carry less of it.

Responses are not compared within a group: one response to a prompt is enough.
"""

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.options import ReinforcePlusPlusOptions
from corerl_torch.statistics import discounted_sums, whiten


def reinforce_plus_plus(inputs: AdvantageInputs, options: ReinforcePlusPlusOptions) -> Advantages:
    """Whitened returns, and the returns."""
    returns = discounted_sums(inputs.rewards, inputs.response_mask, options.gamma)
    return Advantages(whiten(returns, inputs.response_mask), returns)
