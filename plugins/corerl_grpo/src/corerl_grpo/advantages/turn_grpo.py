"""GRPO at each turn: the turn's return minus the group's mean return at the same turn.

With G_ik the discounted return of turn k of episode i, and N_k the episodes of the group that have a turn k::

    A_t = G_ik - mean_(j in N_k) G_jk                     at each token t of turn k
        = that, over (std_(j in N_k) G_jk + 1e-6)         with norm_adv_by_std_in_grpo

The baseline that comes to mind: after Zeng et al. 2025 (MT-GRPO), arXiv 2505.11821, which normalises rewards of turns,
and with returns of steps Feng et al. 2025 (GiGPO), arXiv 2505.10978.

Biased if the policy decides when to stop: episode i is one of N_k, so its gradient at turn k shrinks by the factor
(n_k - 1) / n_k, and n_k, the number of episodes in N_k, is smaller at later turns and depends on earlier actions. Later
turns learn less, and nothing if i alone has a turn k. ``turn_rloo`` has no such bias.

Without turns the whole response is one turn, and the estimator is Dr. GRPO (GRPO with the deviation). A group with
one scored episode has advantages of 0.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.options import TurnGrpoOptions
from corerl_torch.statistics import group_sums
from corerl_torch.turns import turns_of


def turn_grpo(inputs: AdvantageInputs, options: TurnGrpoOptions) -> Advantages:
    """Returns of turns, centred in the group's same turn."""
    turns = turns_of(inputs)
    returns = turns.returns(options.gamma)
    count = group_sums(turns.present.double(), inputs.group_ids)
    mean = group_sums(returns, inputs.group_ids) / count.clamp(min=1)
    centred = torch.where(turns.present & (count > 1), returns - mean, 0.0)
    if options.norm_adv_by_std_in_grpo:
        variance = group_sums(centred.square(), inputs.group_ids) / (count - 1).clamp(min=1)
        centred = centred / (variance.sqrt() + 1e-6)
    return turns.advantages(centred, returns, inputs)
