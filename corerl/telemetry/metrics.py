"""Means over updates."""

from collections.abc import Iterable, Mapping

from corerl.contracts.losses import Mean, add_means


def merge_means(updates: Iterable[Mapping[str, Mean]], prefix: str) -> dict[str, float]:
    """Means over several updates: totals and counts are added before dividing; a mean of nothing is left out."""
    sums: dict[str, Mean] = {}
    for metrics in updates:
        add_means(sums, metrics)
    return {f"{prefix}/{name}": mean.value for name, mean in sums.items() if mean.count}
