"""The metrics of a step, under the names that verl made common."""

import resource
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from corerl.batch.cuts import balance
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean, add_means, masked_mean
from corerl.contracts.reward_managers import RewardResult, error_kind
from corerl.contracts.throughput import ModelShape, mfu
from corerl.contracts.token_outputs import TokenOutputs

STATM = Path("/proc/self/statm")

PER_RESPONSE_TOKEN = ("gen", "reward")
"""parts whose time is given for each response token, and not for each token of the prompts too"""


def merge_means(updates: Iterable[Mapping[str, Mean]], prefix: str) -> dict[str, float]:
    """Means over several updates: totals and counts are added before dividing; a mean of nothing is left out."""
    sums: dict[str, Mean] = {}
    for metrics in updates:
        add_means(sums, metrics)
    return {f"{prefix}/{name}": mean.value for name, mean in sums.items() if mean.count}


def policy_metrics(outputs: TokenOutputs, experience: Experience) -> dict[str, float]:
    """Mean entropy, in nats, of the policy at the trained tokens before the update."""
    if outputs.entropy is None:
        return {}
    return merge_means([{"entropy": masked_mean(outputs.entropy, experience.response_mask)}], "actor")


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
    for group, result in zip(experience.group_ids.tolist(), results, strict=True):
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
    """Rewards, advantages and returns over trained tokens; lengths in tokens."""
    mask = experience.response_mask
    metrics: dict[str, float] = {}
    if experience.rewards is not None:
        metrics |= _spread("critic/rewards", experience.rewards.sum(dim=1)[mask.any(dim=1)])
    if experience.advantages is not None and experience.returns is not None:
        metrics |= _spread("critic/advantages", experience.advantages[mask])
        metrics |= _spread("critic/returns", experience.returns[mask])
        if experience.values is not None and mask.any():
            metrics |= _spread("critic/values", experience.values[mask])
            error = (experience.returns - experience.values)[mask].var(correction=0)
            spread = experience.returns[mask].var(correction=0).clamp(min=1e-8)
            metrics["critic/vf_explained_var"] = float(1 - error / spread)
    metrics |= _spread("response_length", experience.response_lengths)
    metrics["response_length/clip_ratio"] = sum(truncated) / len(truncated)
    metrics |= _spread("prompt_length", experience.prompt_lengths)
    metrics["prompt_length/clip_ratio"] = float((experience.prompt_lengths >= max_prompt_length).float().mean())
    return metrics


def mismatch_metrics(experience: Experience) -> dict[str, float]:
    """How far the rollout backend's probabilities of the sampled tokens are from the trainer's."""
    if experience.rollout_log_probs is None or experience.old_log_probs is None:
        return {}
    mask = experience.response_mask
    if not mask.any():
        return {}
    difference = (experience.rollout_log_probs[mask].exp() - experience.old_log_probs[mask].exp()).abs()
    return {
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_max": float(difference.max()),
    }


def sequence_length_metrics(lengths: Tensor, data_parallel_size: int) -> dict[str, float]:
    """``global_seqlen/*``: rows' lengths, and the tokens of the share that each data-parallel rank gets."""
    tokens = [int(lengths[rows].sum()) for rows in balance(lengths, data_parallel_size)]
    metrics = _spread("global_seqlen", lengths)
    metrics["global_seqlen/balanced_max"] = float(max(tokens))
    metrics["global_seqlen/balanced_min"] = float(min(tokens))
    metrics["global_seqlen/minmax_diff"] = float(max(tokens) - min(tokens))
    return metrics


def time_metrics(
    seconds: Mapping[str, float], background: Mapping[str, float], experience: Experience
) -> dict[str, float]:
    """``timing_s/*``, ``timing_background_s/*`` and ``timing_per_token_ms/*``."""
    metrics = {f"timing_s/{part}": value for part, value in seconds.items()}
    metrics |= {f"timing_background_s/{part}": value for part, value in background.items()}
    total_tokens, response_tokens = int(experience.lengths.sum()), int(experience.response_lengths.sum())
    for part, value in {**seconds, **background}.items():
        if part != "step":
            tokens = response_tokens if part in PER_RESPONSE_TOKEN else total_tokens
            metrics[f"timing_per_token_ms/{part}"] = 1000 * value / max(1, tokens)
    return metrics


def performance_metrics(
    seconds: Mapping[str, float], experience: Experience, shape: ModelShape, passes: int = 1
) -> dict[str, float]:
    """``perf/*`` but for the GPU's memory; ``passes`` is how often an update goes through the batch."""
    total_tokens, lengths = int(experience.lengths.sum()), experience.lengths.tolist()
    metrics = {
        "perf/total_num_tokens": float(total_tokens),
        "perf/time_per_step": seconds["step"],
        "perf/throughput": total_tokens / seconds["step"],
        "perf/cpu_memory_used_gb": _resident_gb(),
        "perf/cpu_memory_peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    utilisation = mfu(shape, lengths * passes, seconds.get("update_actor", 0.0))
    if utilisation is not None:
        metrics["perf/mfu/actor"] = utilisation
    return metrics


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    values = values.float()
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _resident_gb() -> float:
    """Memory that this process holds, in GiB; Linux, elsewhere the peak."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return pages * resource.getpagesize() / 2**30
