"""Advantages of a batch: an estimator sees one row for each episode."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageEstimator, AdvantageInputs, Advantages, Turns
from corerl.contracts.experience import Experience
from corerl.errors import RunError


def estimate(
    estimator: AdvantageEstimator,
    batch: Experience,
    components: Mapping[str, Tensor],
    rollout_weights: Tensor | None,
    turns: Turns | None = None,
) -> Advantages:
    """Advantages and returns of each token of the batch, both (B, T); 0 at tokens that are not trained.

    If episodes have branches, the estimator sees the trained tokens of all rows of an episode end to end, in the order
    of its turns. Otherwise it sees the batch as it is, with values of 0 at tokens that are not trained on.

    Args:
        components: name -> (E,), named parts of the scores of E episodes.
        rollout_weights: (B, T), factors of the terms of the policy loss, or None.
        turns: of the rows; None without an agent.
    """
    assert batch.rewards is not None
    if batch.values is not None:
        batch.values.masked_fill_(~batch.response_mask, 0.0)
    if batch.episode_ids is None:
        estimated = _estimated(estimator, _inputs(batch, components, rollout_weights, turns, lambda column: column))
        return Advantages(*map(batch.at_trained, estimated))
    assert turns is not None
    tokens = _tokens_of_episodes(batch, turns.ids)
    real = tokens >= 0

    def of_episodes(column: Tensor | None) -> Tensor | None:
        return None if column is None else torch.where(real, column.flatten()[tokens], 0)

    ids = torch.where(real, turns.ids.flatten()[tokens], -1)
    inputs = _inputs(batch, components, rollout_weights, turns._replace(ids=ids), of_episodes)
    estimated = _estimated(estimator, inputs)

    def of_rows(column: Tensor) -> Tensor:
        rows = torch.zeros(batch.response_mask.shape, dtype=column.dtype)
        rows.view(-1)[tokens[real]] = column[real]
        return rows

    return Advantages(of_rows(estimated.advantages), of_rows(estimated.returns))


def _estimated(estimator: AdvantageEstimator, inputs: AdvantageInputs) -> Advantages:
    """The estimator's result.

    Raises:
        RunError: it has another type or shape.
    """
    estimated, wanted = estimator(inputs), tuple(inputs.rewards.shape)
    if not isinstance(estimated, Advantages):
        raise RunError(
            f"an advantage estimator returned {type(estimated).__name__}, not Advantages(advantages, returns)"
        )
    if any(column.shape != wanted for column in estimated):
        shapes = " and ".join(str(tuple(column.shape)) for column in estimated)
        raise RunError(
            f"an advantage estimator returned shapes {shapes}, not {wanted}: a number for each response token"
        )
    return estimated


def _tokens_of_episodes(batch: Experience, turn_ids: Tensor) -> Tensor:
    """(E, W) int64: places in a flat column of the trained tokens of each episode, by turn; -1 behind them."""
    assert batch.episode_ids is not None
    mask = batch.response_mask
    places = mask.flatten().nonzero().squeeze(1)
    episodes = batch.episode_ids[:, None].expand_as(mask).flatten()[places]
    by_turn = torch.argsort(turn_ids.flatten()[places], stable=True)
    order = by_turn[torch.argsort(episodes[by_turn], stable=True)]
    counts = torch.bincount(episodes, minlength=batch.episodes)
    tokens = torch.full((batch.episodes, max(1, int(counts.max()))), -1)
    tokens[torch.arange(tokens.shape[1]) < counts[:, None]] = places[order]
    return tokens


def _inputs(
    batch: Experience,
    components: Mapping[str, Tensor],
    rollout_weights: Tensor | None,
    turns: Turns | None,
    column: Callable[[Tensor | None], Tensor | None],
) -> AdvantageInputs:
    """The inputs of the estimator; ``column`` turns a column of the batch into one of episodes."""
    rewards, mask = column(batch.rewards), column(batch.response_mask)
    assert rewards is not None and mask is not None
    greedy, episodes = batch.greedy_scores, batch.episodes
    return AdvantageInputs(
        rewards=rewards,
        response_mask=mask.bool(),
        group_ids=batch.group_ids[:episodes],
        values=column(batch.values),
        greedy_scores=None if greedy is None else greedy[:episodes],
        log_probs=column(batch.old_log_probs),
        sum_pi_squared=column(batch.sum_pi_squared),
        components=components,
        rollout_weights=column(rollout_weights),
        turns=turns,
    )
