"""Discounted turn returns: each turn is credited with the rewards from it on.

With R_k the reward of turn k, the outcome score in the last turn::

    G_k = R_k + gamma G_(k+1)
    A_t = G_k                                             at each token t of turn k
        = (G_k - mean(G)) / sqrt(var(G) + 1e-8)           with whiten, over all tokens of the batch

Rewards before a turn do not depend on it, so they are left out: Sutton et al. 2000, "Policy Gradient Methods for
Reinforcement Learning with Function Approximation", NeurIPS 12; with turns of language models as actions: Zhou et al.
2024 (ArCHer), arXiv 2402.19446. With gamma = 1 the expected gradient is that of the expected score. With gamma < 1 it
is that of no objective: the factor gamma^k of turn k is left out, as in frameworks in common use (Nota and Thomas 2020,
arXiv 1906.07073). Whitening makes it biased, and gives scores of one sign a baseline.

Responses are not compared within a group, so one response to a prompt is enough. Without turns the whole response is
one turn.
"""

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl_grpo.advantages.options import TurnReturnsOptions
from corerl_torch.statistics import whiten
from corerl_torch.turns import turns_of


def turn_returns(inputs: AdvantageInputs, options: TurnReturnsOptions) -> Advantages:
    """Returns of turns at their tokens, whitened or not, and the returns."""
    turns = turns_of(inputs)
    returns = turns.at_tokens(turns.returns(options.gamma)).to(inputs.rewards.dtype)
    return Advantages(whiten(returns, inputs.response_mask) if options.whiten else returns, returns)
