"""Right estimators with returns, a critic or a greedy baseline, and the same with one flaw each."""

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import MissingInputError
from corerl_torch.statistics import discounted_sums, whiten
from planted.advantage_estimators.group_baselines import group_baseline, moments, scores_of, spread

GAMMA = 0.9


def reward_to_go(inputs: AdvantageInputs) -> Advantages:
    """The discounted sum of the rewards from each token on."""
    returns = discounted_sums(inputs.rewards, inputs.response_mask, GAMMA)
    return Advantages(returns, returns)


def sums_from_the_wrong_end(inputs: AdvantageInputs) -> Advantages:
    returns = torch.where(inputs.response_mask, inputs.rewards.cumsum(dim=1), 0.0)
    return Advantages(returns, returns)


def discounts_by_column(inputs: AdvantageInputs) -> Advantages:
    """Masked tokens cost a discount too."""
    steps = torch.arange(inputs.rewards.shape[1], dtype=inputs.rewards.dtype)
    powers = torch.triu(GAMMA ** (steps - steps[:, None]).clamp(min=0))
    returns = torch.where(inputs.response_mask, inputs.rewards @ powers.T, 0.0)
    return Advantages(returns, returns)


def token_by_token(inputs: AdvantageInputs) -> Advantages:
    running = torch.zeros_like(inputs.rewards[:, 0])
    columns = []
    for column in reversed(range(inputs.rewards.shape[1])):
        running = inputs.rewards[:, column] + running
        columns.append(running)
    returns = torch.stack(columns[::-1], dim=1) * inputs.response_mask
    return Advantages(returns, returns)


def _with_values(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """The discounted return, and the values."""
    if inputs.values is None:
        raise MissingInputError("values", 'needs={"critic"}')
    return discounted_sums(inputs.rewards, inputs.response_mask, GAMMA), inputs.values


def critic(inputs: AdvantageInputs) -> Advantages:
    """The return less the value, whitened; the critic learns the return."""
    returns, values = _with_values(inputs)
    return Advantages(whiten(returns - values, inputs.response_mask), returns)


def returns_of_whitened_advantages(inputs: AdvantageInputs) -> Advantages:
    returns, values = _with_values(inputs)
    advantages = whiten(returns - values, inputs.response_mask)
    return Advantages(advantages, torch.where(inputs.response_mask, advantages + values, 0.0))


def values_of_the_next_token(inputs: AdvantageInputs) -> Advantages:
    """V is shifted by one."""
    returns, values = _with_values(inputs)
    shifted = torch.nn.functional.pad(values[:, 1:], (0, 1))
    return Advantages(whiten(returns - shifted, inputs.response_mask), returns)


def value_with_the_wrong_sign(inputs: AdvantageInputs) -> Advantages:
    returns, values = _with_values(inputs)
    return Advantages(whiten(returns + values, inputs.response_mask), returns)


def ignores_the_critic(inputs: AdvantageInputs) -> Advantages:
    returns, _ = _with_values(inputs)
    return Advantages(whiten(returns, inputs.response_mask), returns)


def returns_less_the_batch_mean(inputs: AdvantageInputs) -> Advantages:
    returns, values = _with_values(inputs)
    mask = inputs.response_mask
    mean = returns.sum() / mask.sum().clamp(min=1)
    return Advantages(whiten(returns - values, mask), torch.where(mask, returns - mean, 0.0))


def returns_of_the_whole_row(inputs: AdvantageInputs) -> Advantages:
    returns, values = _with_values(inputs)
    whole = spread(scores_of(inputs)[1], inputs).returns
    return Advantages(whiten(returns - values, inputs.response_mask), whole)


def discounts_from_the_start(inputs: AdvantageInputs) -> Advantages:
    """The power of gamma is the number of tokens before, not after."""
    returns, values = _with_values(inputs)
    mask = inputs.response_mask
    to_go = discounted_sums(inputs.rewards, mask, 1.0)
    powers = GAMMA ** (mask.cumsum(dim=1) - 1).to(returns.dtype)
    return Advantages(whiten(returns - values, mask), torch.where(mask, to_go * powers, 0.0))


def _greedy(inputs: AdvantageInputs) -> Tensor:
    if inputs.greedy_scores is None:
        raise MissingInputError("greedy_scores", 'needs={"greedy_baseline"}')
    return inputs.greedy_scores


def greedy_baseline(inputs: AdvantageInputs) -> Advantages:
    """The score less that of the greedy response."""
    return spread(scores_of(inputs)[1] - _greedy(inputs), inputs)


def ignores_the_greedy_score(inputs: AdvantageInputs) -> Advantages:
    return spread(scores_of(inputs)[1], inputs)


def greedy_scores_added(inputs: AdvantageInputs) -> Advantages:
    return spread(scores_of(inputs)[1] + _greedy(inputs), inputs)


def greedy_scores_by_group(inputs: AdvantageInputs) -> Advantages:
    """``greedy_scores`` has a number for each row, and is read as if it had one for each group."""
    return spread(scores_of(inputs)[1] - _greedy(inputs)[inputs.group_ids], inputs)


def mean_of_all_greedy_scores(inputs: AdvantageInputs) -> Advantages:
    """A mean weighted by a softmax over the batch: one baseline for all prompts."""
    greedy = _greedy(inputs)
    return spread(scores_of(inputs)[1] - (greedy.softmax(dim=0) * greedy).sum(), inputs)


def weighed_by_energy(inputs: AdvantageInputs) -> Advantages:
    """The baseline is a mean of the group by the squared norm of the gradient of each row."""
    if inputs.sum_pi_squared is None or inputs.log_probs is None:
        raise MissingInputError("sum_pi_squared", 'needs={"sum_pi_squared"}')
    scored, scores = scores_of(inputs)
    energy = 1 - 2 * inputs.log_probs.exp() + inputs.sum_pi_squared
    energy = torch.where(inputs.response_mask, energy, 0.0).sum(dim=1)
    weights = ((inputs.group_ids[:, None] == inputs.group_ids) & scored).to(scores.dtype) * energy
    baseline = weights @ scores / weights.sum(dim=1).clamp(min=1e-12)
    count, _, _ = moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, scores - baseline, 0.0), inputs)


def declares_what_it_does_not_use(inputs: AdvantageInputs) -> Advantages:
    return group_baseline(inputs)
