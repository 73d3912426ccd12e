"""Metrics of parts of a batch, such as updates, joined."""

from collections.abc import Iterable, Mapping

from corerl.contracts.losses import Measure, add_means


def merge_means(parts: Iterable[Mapping[str, Measure]], prefix: str = "") -> dict[str, float]:
    """Values of several parts together: totals and counts are added before dividing; a mean of nothing is left out.

    Args:
        prefix: of the names, before a slash.
    """
    sums: dict[str, Measure] = {}
    for metrics in parts:
        add_means(sums, metrics)
    return {f"{prefix}/{name}" if prefix else name: each.value for name, each in sums.items() if each.count}
