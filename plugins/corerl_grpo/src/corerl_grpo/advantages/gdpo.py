"""GDPO: each reward component is normalised within its group, then the components are added.

With c_ik component k of the score of response i, mu_gk and sigma_gk mean and unbiased deviation of that component in
the group, w_k its weight::

    a_i = sum_k w_k (c_ik - mu_gk) / (sigma_gk + 1e-6)
    A_i = (a_i - mean(a)) / sqrt(var(a) + 1e-8)           over the whole batch

Liu et al. 2026, "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
arXiv 2601.05242: normalisation within the group for each reward, then over the batch. In the second step each response
counts once for each of its tokens, as in the authors' code; 1e-6 and 1e-8 are the values of frameworks in common use.

The estimator does not use the token rewards, so a KL penalty in the reward has no effect. A missing component of a row
counts as 0. A group with one scored response has no spread: its advantage is 0, and the means exclude it.
"""

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import RunError
from corerl_grpo.advantages.group_scores import over_tokens
from corerl_grpo.advantages.grpo import EPSILON
from corerl_grpo.advantages.options import GdpoOptions
from corerl_torch.statistics import group_moments, whiten_scores


def gdpo(inputs: AdvantageInputs, options: GdpoOptions) -> Advantages:
    """The whitened weighted sum of the normalised components.

    Raises:
        RunError: no scorer returns components, or no scorer returns one of ``gdpo_reward_keys``.
    """
    components = _components(inputs, options)
    weights = components.new_tensor(options.gdpo_reward_weights or [1.0] * components.shape[1])
    lengths = inputs.response_mask.sum(dim=1)
    count, mean, std = group_moments(components, lengths > 0, inputs.group_ids)
    advantages = (components - mean) / (std + EPSILON) * weights
    return over_tokens(whiten_scores(advantages.sum(dim=1), torch.where(count > 1, lengths, 0)), inputs)


def _components(inputs: AdvantageInputs, options: GdpoOptions) -> Tensor:
    """(B, K), in the order of ``gdpo_reward_keys``."""
    keys = options.gdpo_reward_keys or sorted(inputs.components)
    unknown = [key for key in keys if key not in inputs.components]
    if unknown or not keys:
        known = ", ".join(sorted(inputs.components)) or "none, because no scorer returns numbers beside 'score'"
        asked = f"component '{unknown[0]}', which no scorer returns" if unknown else "named components of the score"
        raise RunError(f"the advantage estimator gdpo needs {asked}; known: {known}")
    return torch.stack([inputs.components[key] for key in keys], dim=1).to(inputs.rewards.dtype)
