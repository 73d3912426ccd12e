"""The time of a step: seconds of its parts, tokens a second, share of the device's peak."""

import resource
from collections.abc import Mapping
from pathlib import Path

from corerl.contracts.experience import RowNumbers
from corerl.contracts.throughput import ModelShape
from corerl_torch.throughput import mfu

STATM = Path("/proc/self/statm")

PER_RESPONSE_TOKEN = ("gen", "reward")
"""parts whose time is given for each response token, and not for each token of the prompts too"""

WITHOUT_TOKENS = ("step", "save")
"""the whole step, and a part whose time does not depend on the number of tokens"""


def time_metrics(
    seconds: Mapping[str, float], background: Mapping[str, float], experience: RowNumbers
) -> dict[str, float]:
    """``timing_s/*``, ``timing_background_s/*`` and ``timing_per_token_ms/*``."""
    metrics = {f"timing_s/{part}": value for part, value in seconds.items()}
    metrics |= {f"timing_background_s/{part}": value for part, value in background.items()}
    total_tokens, response_tokens = int(experience.lengths.sum()), int(experience.response_lengths.sum())
    for part, value in {**seconds, **background}.items():
        if part not in WITHOUT_TOKENS:
            tokens = response_tokens if part in PER_RESPONSE_TOKEN else total_tokens
            metrics[f"timing_per_token_ms/{part}"] = 1000 * value / max(1, tokens)
    return metrics


def performance_metrics(
    seconds: Mapping[str, float], experience: RowNumbers, shape: ModelShape, passes: int = 1
) -> dict[str, float]:
    """``perf/*`` but for the GPU's memory; ``passes`` is how often an update goes through the batch."""
    total_tokens, lengths = int(experience.lengths.sum()), experience.lengths.tolist()
    step = seconds["step"] - seconds.get("save", 0.0)
    metrics = {
        "perf/total_num_tokens": float(total_tokens),
        "perf/time_per_step": step,
        "perf/throughput": total_tokens / step,
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
