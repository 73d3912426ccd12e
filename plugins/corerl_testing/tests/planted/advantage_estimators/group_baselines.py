"""Right estimators that compare the responses of a group, and the same with one flaw each."""

from typing import Any

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages


def scores_of(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """(B,) whether a row has a score, and the score."""
    return inputs.response_mask.any(dim=1), torch.where(inputs.response_mask, inputs.rewards, 0.0).sum(dim=1)


def moments(scores: Tensor, scored: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) number, mean and biased deviation of the scored responses in each row's group."""
    same = ((group_ids[:, None] == group_ids) & scored).to(scores.dtype)
    count = same.sum(dim=1)
    mean = same @ scores / count.clamp(min=1)
    squares = torch.where(same > 0, (scores - mean[:, None]) ** 2, 0.0).sum(dim=1)
    return count, mean, (squares / count.clamp(min=1)).sqrt()


def spread(numbers: Tensor, inputs: AdvantageInputs) -> Advantages:
    """One number for all tokens of a row."""
    advantages = torch.where(inputs.response_mask, numbers[:, None], 0.0)
    return Advantages(advantages, advantages)


def _relative_to(scores: Tensor, scored: Tensor, inputs: AdvantageInputs) -> Advantages:
    count, mean, _ = moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, scores - mean, 0.0), inputs)


def group_baseline(inputs: AdvantageInputs) -> Advantages:
    """The score less the mean of the group."""
    scored, scores = scores_of(inputs)
    return _relative_to(scores, scored, inputs)


def normalised(inputs: AdvantageInputs) -> Advantages:
    """Over the deviation too, in float64."""
    scored, scores = scores_of(inputs)
    count, mean, std = moments(scores.double(), scored, inputs.group_ids)
    numbers = torch.where(count > 1, (scores - mean) / (std + 1e-6), 0.0)
    return spread(numbers.to(scores.dtype), inputs)


def whitened(inputs: AdvantageInputs) -> Advantages:
    """Normalised over the batch; a group of one keeps 0."""
    scored, scores = scores_of(inputs)
    count, mean, _ = moments(scores, scored, inputs.group_ids)
    compared = scored & (count > 1)
    weights = compared / compared.sum().clamp(min=1)
    centred = scores - mean - ((scores - mean) * weights).sum()
    return spread(torch.where(compared, centred / ((centred**2 * weights).sum() + 1e-8).sqrt(), 0.0), inputs)


def batch_baseline(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    mean = (scores * scored).sum() / scored.sum().clamp(min=1)
    alone = moments(scores, scored, inputs.group_ids)[0] == 1
    return spread(torch.where(alone, 0.0, scores - mean), inputs)


def ranks_in_the_batch(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    below = (scores[:, None] > scores) & scored
    return spread(below.sum(dim=1).to(scores.dtype), inputs)


def lone_rows_keep_their_score(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    count, mean, _ = moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, scores - mean, scores), inputs)


def empty_rows_in_the_mean(inputs: AdvantageInputs) -> Advantages:
    _, scores = scores_of(inputs)
    return _relative_to(scores, torch.ones_like(scores, dtype=torch.bool), inputs)


def leaks_through_the_mask(inputs: AdvantageInputs) -> Advantages:
    _, scores = scores_of(inputs)
    advantages = group_baseline(inputs).advantages
    return Advantages(advantages, scores[:, None].expand_as(advantages))


def one_number_a_row(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    return Advantages(scores * scored, scores * scored)


def not_a_pair(inputs: AdvantageInputs) -> Any:
    return group_baseline(inputs).advantages


def always_float64(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(each.double() for each in group_baseline(inputs)))


def modifies_its_input(inputs: AdvantageInputs) -> Advantages:
    advantages = group_baseline(inputs)
    inputs.rewards.mul_(2)
    return advantages


def random_tie_break(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(each + 1e-3 * torch.rand(()) * inputs.response_mask for each in group_baseline(inputs)))


def mean_over_the_width(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(each / inputs.rewards.shape[1] for each in group_baseline(inputs)))


def first_row_counts_twice(inputs: AdvantageInputs) -> Advantages:
    twice = (1 + (torch.arange(len(inputs.rewards)) == 0)).to(inputs.rewards.dtype)
    return Advantages(*(each * twice[:, None] for each in group_baseline(inputs)))


def ids_as_numbers(inputs: AdvantageInputs) -> Advantages:
    weights = 1 + inputs.group_ids[:, None].to(inputs.rewards.dtype)
    return Advantages(*(each * weights for each in group_baseline(inputs)))


def divides_by_the_deviation(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    count, mean, std = moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, (scores - mean) / std, 0.0), inputs)


def sixteenth_power(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(each * each.abs() ** 15 for each in group_baseline(inputs)))


def loops_over_rows(inputs: AdvantageInputs) -> Advantages:
    rows = []
    advantages = group_baseline(inputs).advantages
    for row in range(len(inputs.rewards)):
        rows.append(advantages[row])
    return Advantages(torch.stack(rows), advantages)


def loops_over_lists(inputs: AdvantageInputs) -> Advantages:
    """No torch operation in the loop."""
    groups: dict[int, list[float]] = {}
    for group, score in zip(inputs.group_ids.tolist(), scores_of(inputs)[1].tolist(), strict=True):
        groups.setdefault(group, []).append(score)
    return group_baseline(inputs)


def wrong_sign(inputs: AdvantageInputs) -> Advantages:
    return Advantages(*(-each for each in group_baseline(inputs)))


def ignores_the_rewards(inputs: AdvantageInputs) -> Advantages:
    """The log-prob of a response is taken for its score."""
    assert inputs.log_probs is not None
    scored, _ = scores_of(inputs)
    return _relative_to(torch.where(inputs.response_mask, inputs.log_probs, 0.0).sum(dim=1), scored, inputs)


def score_at_the_column_of_the_length(inputs: AdvantageInputs) -> Advantages:
    """The last token's column is the number of trained tokens less one, but for rows with holes."""
    scored, _ = scores_of(inputs)
    column = (inputs.response_mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    return _relative_to(inputs.rewards.gather(1, column).squeeze(1), scored, inputs)


def reward_of_the_last_token_alone(inputs: AdvantageInputs) -> Advantages:
    """A KL penalty in the reward is at every token, but only the last token is read."""
    scored, _ = scores_of(inputs)
    steps = torch.arange(inputs.rewards.shape[1])
    column = torch.where(inputs.response_mask, steps, 0).max(dim=1, keepdim=True).values
    return _relative_to(inputs.rewards.gather(1, column).squeeze(1), scored, inputs)


def deviation_of_rounding(inputs: AdvantageInputs) -> Advantages:
    """In float32 the mean of equal scores is not their number, and 1e-8 is no more than that."""
    scored, scores = scores_of(inputs)
    count, mean, std = moments(scores, scored, inputs.group_ids)
    return spread(torch.where(count > 1, (scores - mean) / (std + 1e-8), 0.0), inputs)


def _best(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """(B, B) which rows of a group have its largest score, and (B,) that less the group's mean."""
    scored, scores = scores_of(inputs)
    same = (inputs.group_ids[:, None] == inputs.group_ids) & scored
    count, mean, _ = moments(scores, scored, inputs.group_ids)
    largest = torch.where(same, scores, -torch.inf).max(dim=1).values
    return same & (scores == largest[:, None]), torch.where(scored & (count > 1), largest - mean, 0.0)


def best_of_the_group(inputs: AdvantageInputs) -> Advantages:
    """All best responses of a group get the distance to its mean, the others 0."""
    best, numbers = _best(inputs)
    return spread(torch.where(best.diagonal(), numbers, 0.0), inputs)


def first_of_the_best(inputs: AdvantageInputs) -> Advantages:
    """Of two best responses only the first one counts."""
    best, numbers = _best(inputs)
    rows = torch.arange(len(numbers))
    return spread(torch.where(best.to(torch.int8).argmax(dim=1) == rows, numbers, 0.0), inputs)


def sum_of_components(inputs: AdvantageInputs) -> Advantages:
    """Accuracy and half of the format, less their means of the group."""
    scored, _ = scores_of(inputs)
    return _relative_to(inputs.components["accuracy"] + 0.5 * inputs.components["format"], scored, inputs)


def component_with_the_wrong_sign(inputs: AdvantageInputs) -> Advantages:
    scored, _ = scores_of(inputs)
    return _relative_to(inputs.components["accuracy"] - 0.5 * inputs.components["format"], scored, inputs)


_DEVIATIONS: dict[int, Tensor] = {}


def remembers_the_deviation(inputs: AdvantageInputs) -> Advantages:
    """A deviation kept for each size of batch."""
    scored, scores = scores_of(inputs)
    deviation = _DEVIATIONS.setdefault(len(scores), scores[scored].std(unbiased=False) + 0.1)
    return Advantages(*(each / deviation.to(each.dtype) for each in group_baseline(inputs)))


def in_16_bits(inputs: AdvantageInputs) -> Advantages:
    scored, scores = scores_of(inputs)
    return _relative_to(scores.bfloat16().to(scores.dtype), scored, inputs)


def variance_of_one(inputs: AdvantageInputs) -> Advantages:
    """The unbiased variance of one number is NaN."""
    scored, scores = scores_of(inputs)
    count, mean, _ = moments(scores, scored, inputs.group_ids)
    centred = torch.where(scored & (count > 1), scores - mean, 0.0)
    variance = centred.square().sum() / (scored.sum() - 1) if scored.any() else torch.ones(())
    return spread(centred / (variance.sqrt() + 1e-4).to(centred.dtype), inputs)


def factorial_of_the_size(inputs: AdvantageInputs) -> Advantages:
    """(n - 1)! / n! by factorials, which are infinite in float32 from 36 on."""
    scored, scores = scores_of(inputs)
    count, mean, _ = moments(scores, scored, inputs.group_ids)
    weight = torch.lgamma(count).exp() / torch.lgamma(count + 1).exp()
    return spread(torch.where(count > 1, (scores - mean) * weight * count, 0.0), inputs)


def groups_modulo_64(inputs: AdvantageInputs) -> Advantages:
    """A table of 64 groups."""
    scored, scores = scores_of(inputs)
    count, mean, _ = moments(scores, scored, inputs.group_ids % 64)
    return spread(torch.where(count > 1, scores - mean, 0.0), inputs)


def groups_in_8_bits(inputs: AdvantageInputs) -> Advantages:
    """Small integers for small memory."""
    scored, scores = scores_of(inputs)
    count, mean, _ = moments(scores, scored, inputs.group_ids.to(torch.int8))
    return spread(torch.where(count > 1, scores - mean, 0.0), inputs)
