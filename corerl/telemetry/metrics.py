"""Metrics of updates, and of the time of a step."""

import resource
from collections.abc import Iterable, Mapping
from pathlib import Path

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean, add_means, masked_mean
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


def _resident_gb() -> float:
    """Memory that this process holds, in GiB; Linux, elsewhere the peak."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return pages * resource.getpagesize() / 2**30
