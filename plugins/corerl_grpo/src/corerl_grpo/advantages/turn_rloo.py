"""RLOO at each turn: the turn's return minus the mean return of other episodes at the same place. Unbiased.

With G_jl the discounted return of turn l of episode j, and j over the *other* episodes of the group::

    b_ik = mean of G_jl over turns l with the observation of turn k          if there is one, with anchor: observation
         = mean of G_jk over episodes with a turn k                          otherwise, if there is one
         = mean of G_jl over their last turns                                otherwise
    A_t  = G_ik - b_ik     at each token t of turn k

The observation of a turn is the run of tokens that the policy read since its last turn.

Leave-one-out (Ahmadian et al. 2024, arXiv 2402.14740) at anchors (Feng et al. 2025, GiGPO, arXiv 2505.10978). The
construction is CoreRL's. Reason: b_ik is a function of other episodes and of the state in which turn k begins, so given
this state it is independent of the action, and the mean of b grad log pi is 0, however many episodes get to turn k. Two
usual choices break this: a mean that contains G_ik (``turn_grpo``, GiGPO), and an advantage of 0 if no other episode
has a turn k, which drops that turn with a probability that depends on the policy. So a third line is needed: it is
never empty, since every other episode has a last turn. Only its variance is larger.

With gamma = 1 the expected gradient is that of the expected score. Without turns the whole response is one turn, and
the estimator is RLOO. A group with one scored episode has advantages of 0.
"""

from functools import partial

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.options import TurnRlooOptions
from corerl_torch.turns import class_sums, turns_of


def turn_rloo(inputs: AdvantageInputs, options: TurnRlooOptions) -> Advantages:
    """Returns of turns minus the mean of the others at the same anchor."""
    turns = turns_of(inputs)
    returns = turns.returns(options.gamma)
    others = partial(_others_mean, returns, inputs.group_ids[:, None])
    baseline, count = others(torch.zeros_like(turns.numbers), turns.last)
    has_others = count > 0
    for anchor in (turns.numbers, turns.observations) if options.anchor == "observation" else (turns.numbers,):
        mean, count = others(anchor, turns.present)
        baseline = torch.where(count > 0, mean, baseline)
    return turns.advantages(torch.where(has_others, returns - baseline, 0.0), returns, inputs)


def _others_mean(returns: Tensor, groups: Tensor, anchor: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """(B, K) each: mean return of the group's other episodes at counted turns of the same anchor; their number."""
    rows = torch.arange(len(groups), device=groups.device)[:, None]
    sums, counts = (
        class_sums(values, (groups, anchor), counted) - class_sums(values, (rows, anchor), counted)
        for values in (returns, torch.ones_like(returns))
    )
    return sums / counts.clamp(min=1), counts
