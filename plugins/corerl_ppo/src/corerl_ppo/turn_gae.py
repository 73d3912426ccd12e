"""GAE over turns: a turn is one action, and the critic's values count where turns begin.

With R_k the reward of turn k, the outcome score in the last turn, and V_k the critic's value before the first trained
token of turn k::

    delta_k = R_k + gamma V_(k+1) - V_k            V after the last turn is 0
    A_k     = delta_k + gamma lam A_(k+1)
    returns = A_k + V_k                            at each token of turn k; the critic learns them
    advantages = A_k at each token of turn k; with whiten, whitened over the valid tokens of the batch

Li et al. 2025, "Turn-PPO: Turn-Level Advantage Estimation with PPO for Improved Multi-Turn RL in Agentic LLMs", arXiv
2512.17008; GAE: Schulman et al. 2015, arXiv 1506.02438, equation 16. gamma and lam apply between turns: the length of a
turn has no effect. With lam = gamma = 1 and without ``whiten`` the expected gradient is that of the expected score,
whatever the critic: V_k does not depend on the turn's action.

A turn's reward is its own and those of its tokens. Turns without a trained token are skipped. Without turns the whole
response is one turn.
"""

from torch.nn import functional

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_ppo.options import TurnGaeOptions
from corerl_torch.statistics import compact, discounted_sums, spread, whiten
from corerl_torch.turns import turns_of


def turn_gae(inputs: AdvantageInputs, options: TurnGaeOptions) -> Advantages:
    """Advantages of turns at their tokens, and the returns."""
    if inputs.values is None:
        raise MissingInputError("values", 'needs={"critic"}')
    turns = turns_of(inputs)
    rewards = compact(turns.rewards, turns.present)
    values = compact(turns.first(inputs.values.double()), turns.present)
    valid = compact(turns.present, turns.present)
    deltas = rewards + options.gamma * functional.pad(values[:, 1:], (0, 1)) - values
    per_turn = discounted_sums(deltas, valid, options.gamma * options.lam)

    estimated, returned = (spread(column, turns.present) for column in (per_turn, per_turn + values))
    advantages, returns = turns.advantages(estimated, returned, inputs)
    return Advantages(whiten(advantages, inputs.response_mask) if options.whiten else advantages, returns)
