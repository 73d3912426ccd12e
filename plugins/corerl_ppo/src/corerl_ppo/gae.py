"""GAE: generalized advantage estimation, with a critic.

With r_t the token rewards and V_t the critic's value before token t, over the valid tokens of a response::

    delta_t = r_t + gamma V_{t+1} - V_t            V after the last token is 0
    A_t     = delta_t + gamma lam A_{t+1}
    R_t     = A_t + V_t                            the returns, which the critic learns
    advantages = whiten(A) over the valid tokens of the batch

Schulman et al. 2015, "High-dimensional continuous control using generalized advantage estimation", arXiv 1506.02438,
equation 16; as a sum from the end: Schulman et al. 2017 (PPO), arXiv 1707.06347, equations 11 and 12. Whitening is in
neither; it has been common since OpenAI's baselines.

Masked tokens between the policy's (the output of a tool) are skipped: t + 1 is the next valid token, and neither gamma
nor lam is applied for those between. Frameworks in common use that skip them differ outside the mask, where they leave
numbers: here advantages and returns are 0.
"""

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_ppo.options import GaeOptions
from corerl_torch.statistics import compact, discounted_row_sums, has_holes, spread, whiten_


def gae(inputs: AdvantageInputs, options: GaeOptions) -> Advantages:
    """Whitened advantages, and returns from before whitening."""
    rewards, values, mask = inputs.rewards, inputs.values, inputs.response_mask
    if values is None:
        raise MissingInputError("values", "needs_critic=True")
    if not has_holes(mask):
        return gae_without_holes(rewards, values, mask, options)
    advantages, returns = gae_without_holes(compact(rewards, mask), compact(values, mask), compact(mask, mask), options)
    return Advantages(spread(advantages, mask), spread(returns, mask))


def gae_without_holes(rewards: Tensor, values: Tensor, mask: Tensor, options: GaeOptions) -> Advantages:
    """All (B, T), numbers 0 where ``mask`` is false; the true elements of each of its rows stand at the row's start.

    Tensors of this size cost more to allocate than to compute with: there are two, and they are what is returned.
    """
    deltas = rewards - values
    deltas[:, :-1].add_(values[:, 1:], alpha=options.gamma)
    advantages = discounted_row_sums(deltas, options.gamma * options.lam)
    returns = torch.add(advantages, values, out=deltas)
    return Advantages(whiten_(advantages, mask), returns)
