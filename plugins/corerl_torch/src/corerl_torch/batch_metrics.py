"""The metrics of the batch of a step, under the names that verl made common; those of parts of a batch add up."""

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Combined, Mean, Measure
from corerl.contracts.reward_managers import RewardResult, error_kind
from corerl_torch.balance import balance
from corerl_torch.blocks import Moments, Spread, add_spreads, blocks, moments, spread


def step_metrics(
    experience: Experience,
    results: Sequence[RewardResult],
    truncated: Sequence[bool],
    max_prompt_length: int,
    responses: int,
) -> dict[str, Measure]:
    """Everything about a part of the batch of a step with so many responses."""
    return {
        **score_metrics(results, responses),
        **group_metrics(experience, results),
        **batch_metrics(experience, truncated, max_prompt_length),
        **mismatch_metrics(experience),
    }


def group_metrics(experience: Experience, results: Sequence[RewardResult]) -> dict[str, Measure]:
    """``reward/groups_without_spread``: share of prompts whose scored responses all have one score."""
    scores: dict[int, set[float]] = {}
    for group, result in zip(experience.group_ids[: len(results)].tolist(), results, strict=True):
        scores.setdefault(group, set()).update([] if result.score is None else [result.score])
    return {"reward/groups_without_spread": _share(len(different) < 2 for different in scores.values())}


def score_metrics(results: Sequence[RewardResult], responses: int) -> dict[str, Measure]:
    """``critic/score/*`` over the samples that have a score, ``reward/<component>/mean`` and ``reward/error_ratio``.

    ``reward/errors/<kind>/count`` and ``rate``, of all ``responses`` of the step, say what went wrong in those that
    have none.
    """
    scored = [result for result in results if result.score is not None]
    scores = torch.tensor([result.score for result in scored])
    metrics: dict[str, Measure] = {**_spread("critic/score", scores)}
    metrics["reward/error_ratio"] = Mean(len(results) - len(scored), len(results))
    for kind, count in sorted(Counter(error_kind(result) for result in results if result.score is None).items()):
        metrics[f"reward/errors/{kind}/count"] = Combined(float(count), operator.add)
        metrics[f"reward/errors/{kind}/rate"] = Combined(count / responses, operator.add)
    for name in sorted({name for result in scored for name in result.components}):
        values = [result.components[name] for result in scored if name in result.components]
        metrics[f"reward/{name}/mean"] = Mean(sum(values), len(values))
    return metrics


def batch_metrics(experience: Experience, truncated: Sequence[bool], max_prompt_length: int) -> dict[str, Measure]:
    """Rewards, advantages and returns over trained tokens; lengths of the responses' main paths in tokens."""
    mask = experience.response_mask
    metrics: dict[str, Measure] = {}
    if experience.rewards is not None:
        rewards = experience.by_episode(experience.rewards.sum(dim=1))
        metrics |= _spread("critic/rewards", rewards[experience.by_episode(mask.sum(dim=1)) > 0])
    if experience.advantages is not None and experience.returns is not None:
        metrics |= spread(experience.advantages, mask).metrics("critic/advantages")
        metrics |= spread(experience.returns, mask).metrics("critic/returns")
        if experience.values is not None and mask.any():
            metrics |= spread(experience.values, mask).metrics("critic/values")
            errors = moments(experience.returns - experience.values, mask)
            metrics["critic/vf_explained_var"] = Explained(errors, moments(experience.returns, mask))
    prompts, responses = experience.prompt_lengths[: len(truncated)], experience.response_lengths[: len(truncated)]
    metrics |= _spread("response_length", responses)
    metrics["response_length/clip_ratio"] = _share(truncated)
    metrics |= _spread("prompt_length", prompts)
    metrics["prompt_length/clip_ratio"] = _share((prompts >= max_prompt_length).tolist())
    return metrics


@dataclass(frozen=True)
class Explained:
    """The share of the variance of returns that values explain."""

    errors: Moments
    returns: Moments

    def __add__(self, other: "Explained") -> "Explained":
        return Explained(self.errors + other.errors, self.returns + other.returns)

    @property
    def count(self) -> int:
        """Tokens."""
        return self.returns.count

    @property
    def value(self) -> float:
        """1: all of it."""
        return 1 - self.errors.variance / max(self.returns.variance, 1e-8)


def mismatch_metrics(experience: Experience) -> dict[str, Measure]:
    """How far the rollout backend's probabilities of the sampled tokens are from the trainer's."""
    if experience.rollout_log_probs is None or experience.old_log_probs is None:
        return {}
    rollout, old, mask = experience.rollout_log_probs, experience.old_log_probs, experience.response_mask
    found = add_spreads(Spread.of((rollout[rows].exp() - old[rows].exp()).abs_(), mask[rows]) for rows in blocks(mask))
    if found.count == 0:
        return {}
    return {
        "training/rollout_probs_diff_mean": Mean(found.total, found.count),
        "training/rollout_probs_diff_max": Combined(found.most, max),
    }


def sequence_length_metrics(lengths: Tensor, data_parallel_size: int) -> dict[str, float]:
    """``global_seqlen/*``: rows' lengths, and the tokens of the share that each data-parallel rank gets."""
    tokens = [int(lengths[rows].sum()) for rows in balance(lengths, data_parallel_size)]
    metrics = {name: each.value for name, each in _spread("global_seqlen", lengths).items()}
    metrics["global_seqlen/balanced_max"] = float(max(tokens))
    metrics["global_seqlen/balanced_min"] = float(min(tokens))
    metrics["global_seqlen/minmax_diff"] = float(max(tokens) - min(tokens))
    return metrics


def _spread(name: str, values: Tensor) -> dict[str, Measure]:
    values = values.double()
    return Spread.of(values, torch.ones_like(values, dtype=torch.bool)).metrics(name)


def _share(counted: Iterable[bool]) -> Mean:
    found = [*counted]
    return Mean(sum(found), len(found))
