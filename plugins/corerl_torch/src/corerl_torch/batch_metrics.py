"""The metrics of the batch of a step, under the names that verl made common."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.reward_managers import RewardResult, error_kind
from corerl_torch.balance import balance
from corerl_torch.blocks import Spread, add_spreads, blocks, spread


def step_metrics(
    experience: Experience,
    results: Sequence[RewardResult],
    truncated: Sequence[bool],
    max_prompt_length: int,
    data_parallel_size: int = 1,
) -> dict[str, float]:
    """Everything about the batch of one step."""
    return {
        **score_metrics(results),
        **group_metrics(experience, results),
        **batch_metrics(experience, truncated, max_prompt_length),
        **mismatch_metrics(experience),
        **sequence_length_metrics(experience.lengths, data_parallel_size),
    }


def group_metrics(experience: Experience, results: Sequence[RewardResult]) -> dict[str, float]:
    """``reward/groups_without_spread``: share of prompts whose scored responses all have one score."""
    scores: dict[int, set[float]] = {}
    for group, result in zip(experience.group_ids[: len(results)].tolist(), results, strict=True):
        scores.setdefault(group, set()).update([] if result.score is None else [result.score])
    return {"reward/groups_without_spread": sum(len(different) < 2 for different in scores.values()) / len(scores)}


def score_metrics(results: Sequence[RewardResult]) -> dict[str, float]:
    """``critic/score/*`` over the samples that have a score, ``reward/<component>/mean`` and ``reward/error_ratio``.

    ``reward/errors/<kind>/count`` and ``rate``, of all samples, say what went wrong in those that have none.
    """
    scored = [result for result in results if result.score is not None]
    metrics = _spread("critic/score", torch.tensor([result.score for result in scored]))
    metrics["reward/error_ratio"] = 1 - len(scored) / len(results)
    for kind, count in sorted(Counter(error_kind(result) for result in results if result.score is None).items()):
        metrics[f"reward/errors/{kind}/count"] = float(count)
        metrics[f"reward/errors/{kind}/rate"] = count / len(results)
    for name in sorted({name for result in scored for name in result.components}):
        values = [result.components[name] for result in scored if name in result.components]
        metrics[f"reward/{name}/mean"] = sum(values) / len(values)
    return metrics


def batch_metrics(experience: Experience, truncated: Sequence[bool], max_prompt_length: int) -> dict[str, float]:
    """Rewards, advantages and returns over trained tokens; lengths of the responses' main paths in tokens."""
    mask = experience.response_mask
    metrics: dict[str, float] = {}
    if experience.rewards is not None:
        rewards = experience.by_episode(experience.rewards.sum(dim=1))
        metrics |= _spread("critic/rewards", rewards[experience.by_episode(mask.sum(dim=1)) > 0])
    if experience.advantages is not None and experience.returns is not None:
        metrics |= spread(experience.advantages, mask).metrics("critic/advantages")
        metrics |= spread(experience.returns, mask).metrics("critic/returns")
        if experience.values is not None and mask.any():
            metrics |= spread(experience.values, mask).metrics("critic/values")
            error = _variance(experience.returns - experience.values, mask)
            metrics["critic/vf_explained_var"] = 1 - error / max(_variance(experience.returns, mask), 1e-8)
    prompts, responses = experience.prompt_lengths[: len(truncated)], experience.response_lengths[: len(truncated)]
    metrics |= _spread("response_length", responses)
    metrics["response_length/clip_ratio"] = sum(truncated) / len(truncated)
    metrics |= _spread("prompt_length", prompts)
    metrics["prompt_length/clip_ratio"] = float((prompts >= max_prompt_length).float().mean())
    return metrics


def mismatch_metrics(experience: Experience) -> dict[str, float]:
    """How far the rollout backend's probabilities of the sampled tokens are from the trainer's."""
    if experience.rollout_log_probs is None or experience.old_log_probs is None:
        return {}
    rollout, old, mask = experience.rollout_log_probs, experience.old_log_probs, experience.response_mask
    found = add_spreads(Spread.of((rollout[rows].exp() - old[rows].exp()).abs_(), mask[rows]) for rows in blocks(mask))
    if found.count == 0:
        return {}
    return {
        "training/rollout_probs_diff_mean": found.total / found.count,
        "training/rollout_probs_diff_max": found.most,
    }


def sequence_length_metrics(lengths: Tensor, data_parallel_size: int) -> dict[str, float]:
    """``global_seqlen/*``: rows' lengths, and the tokens of the share that each data-parallel rank gets."""
    tokens = [int(lengths[rows].sum()) for rows in balance(lengths, data_parallel_size)]
    metrics = _spread("global_seqlen", lengths)
    metrics["global_seqlen/balanced_max"] = float(max(tokens))
    metrics["global_seqlen/balanced_min"] = float(min(tokens))
    metrics["global_seqlen/minmax_diff"] = float(max(tokens) - min(tokens))
    return metrics


def _variance(values: Tensor, mask: Tensor) -> float:
    """Of the values (B, T) where ``mask`` is true, not corrected for the mean."""
    found = spread(values, mask)
    mean = found.total / found.count
    return sum(float((values[rows] - mean).square_().masked_fill_(~mask[rows], 0.0).sum()) for rows in blocks(mask)) / (
        found.count
    )


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    values = values.float()
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }
