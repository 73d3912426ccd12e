"""Means over updates."""

from collections.abc import Iterable, Mapping

from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean, add_means, masked_mean
from corerl.contracts.token_outputs import TokenOutputs


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
