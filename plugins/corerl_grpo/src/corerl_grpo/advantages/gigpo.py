"""GiGPO: GRPO over episodes, plus GRPO over the turns that begin in the same state.

With s_i the score of episode i, G_ik the discounted return of its turn k, and S_ik the turns of the group, of episode i
too, with the same anchor::

    A_t = (s_i - mean s) / (std s + 1e-6)
        + step_advantage_w (G_ik - mean_(S_ik) G) / (std_(S_ik) G + 1e-6)     at each token t of turn k

Without ``norm_adv_by_std_in_grpo`` neither part is divided. The second part of a turn that is alone at its anchor is 0.

Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", arXiv 2505.10978. The
paper's anchor is the state of the environment. Here it is the observation: the tokens that the policy read since its
last turn, at first the prompt, must be equal. So a state recurs if the environment says the same, whatever was said
before. ``anchor: turn`` takes turns with the same number, whatever was read. The first observation of a branch of an
episode is its whole history.

Means contain the turn's own return, and deviations divide, so the expected gradient is that of no objective; at
anchor: turn it has the bias of ``turn_grpo`` besides.
"""

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.group_scores import group_scores
from corerl_grpo.advantages.options import GigpoOptions
from corerl_torch.turns import class_sums, turns_of

EPSILON = 1e-6


def gigpo(inputs: AdvantageInputs, options: GigpoOptions) -> Advantages:
    """Advantage of the episode plus weighted advantage of the turn at its anchor."""
    group = group_scores(inputs)
    of_episode = torch.where(group.compared, group.scores - group.mean, 0.0).double()
    if options.norm_adv_by_std_in_grpo:
        of_episode = of_episode / (group.std + EPSILON)
    turns = turns_of(inputs)
    returns = turns.returns(options.gamma)
    keys = (inputs.group_ids[:, None], turns.observations if options.anchor == "observation" else turns.numbers)
    of_turn = _centred(returns, keys, turns.present, options.norm_adv_by_std_in_grpo)
    of_turn = torch.where(group.compared[:, None], of_turn, 0.0)
    return turns.advantages(of_episode[:, None] + options.step_advantage_w * of_turn, returns, inputs)


def _centred(returns: Tensor, keys: tuple[Tensor, ...], counted: Tensor, normalise: bool) -> Tensor:
    """(B, K): returns minus the mean, and over the deviation, of the counted turns with equal keys."""
    count = class_sums(torch.ones_like(returns), keys, counted)
    mean = class_sums(returns, keys, counted) / count.clamp(min=1)
    centred = torch.where(counted & (count > 1), returns - mean, 0.0)
    if not normalise:
        return centred
    variance = class_sums(centred.square(), keys, counted) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + EPSILON)
