"""ReMax: the return minus the score of the greedy response.

With b the score of a greedy response to the same prompt::

    A_t = sum_(t' >= t) r_t' - b

Li et al. 2023, "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language
Models", arXiv 2310.10505. The returns are the sums, before b is subtracted. In the authors' code the score
is discounted with 0.99, and the KL penalty of a token counts at that token only. Here, as in frameworks in common use,
there is no discount, and the penalties of later tokens are summed too. b contains no KL penalty.

Responses are not compared within a group, so one response to a prompt is enough.
"""

import torch

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_torch.statistics import discounted_sums


def remax(inputs: AdvantageInputs) -> Advantages:
    """Return minus the greedy response's score, and the return."""
    if inputs.greedy_scores is None:
        raise MissingInputError("greedy_scores", 'needs={"greedy_baseline"}')
    returns = discounted_sums(inputs.rewards, inputs.response_mask, 1.0)
    advantages = returns - inputs.greedy_scores.to(returns.dtype)[:, None]
    return Advantages(torch.where(inputs.response_mask, advantages, 0.0), returns)
