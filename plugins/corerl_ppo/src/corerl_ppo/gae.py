"""GAE: generalized advantage estimation, with a critic.

With r_t the token rewards and V_t the critic's value before token t, over the valid tokens of a response::

    delta_t = r_t + gamma V_{t+1} - V_t            V after the last token is 0
    A_t     = delta_t + gamma lam A_{t+1}
    R_t     = A_t + V_t                            the returns, which the critic learns
    advantages = whiten(A) over the valid tokens of the batch

Schulman et al. 2015, "High-dimensional continuous control using generalized advantage estimation", arXiv 1506.02438,
equation 16; as a sum from the end: Schulman et al. 2017 (PPO), arXiv 1707.06347, equations 11 and 12. Whitening is in
neither; it has been common since OpenAI's baselines.

Masked tokens between the policy's tokens (the output of a tool) are skipped: t + 1 is the next valid token, and neither
gamma nor lam is applied to the masked ones. Outside the mask advantages and returns are 0; some frameworks in common
use leave other numbers there.
"""

from torch.nn import functional

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_ppo.options import GaeOptions
from corerl_torch.statistics import compact, discounted_sums, spread, whiten


def gae(inputs: AdvantageInputs, options: GaeOptions) -> Advantages:
    """Whitened advantages, and returns computed before whitening."""
    if inputs.values is None:
        raise MissingInputError("values", 'needs={"critic"}')
    mask = inputs.response_mask
    rewards, values, valid = compact(inputs.rewards, mask), compact(inputs.values, mask), compact(mask, mask)
    next_values = functional.pad(values[:, 1:], (0, 1))
    deltas = rewards + options.gamma * next_values - values
    advantages = discounted_sums(deltas, valid, options.gamma * options.lam)
    returns = advantages + values
    return Advantages(spread(whiten(advantages, valid), mask), spread(returns, mask))
