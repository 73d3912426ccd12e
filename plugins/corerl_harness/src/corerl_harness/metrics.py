"""Metrics of an episode's command and its check."""

from collections.abc import Mapping

from corerl_harness.options import GIB, KIB
from corerl_harness.process import Ended

CAUSES = ("timeout", "memory", "tasks", "disk", "output")


def metrics_of(ended: Ended, checked: Ended | None) -> Mapping[str, float | tuple[float, float]]:
    """Name -> number, or (sum, count) of a ratio."""
    metrics: dict[str, float | tuple[float, float]] = {
        "harness/seconds": ended.seconds,
        "harness/memory_gb": ended.memory / GIB,
        "harness/processes": float(ended.tasks),
        "harness/output_kb": ended.output_bytes / KIB,
        "harness/exit_code/ratio": (float(ended.how == "ended" and ended.status != 0), 1),
        "harness/lost/ratio": (float(ended.how == "lost"), 1),
        "harness/left_behind/ratio": (float(ended.strays > 0), 1),
    }
    metrics |= {f"harness/{cause}/ratio": (float(ended.how == cause), 1) for cause in CAUSES}
    if checked is not None:
        metrics["harness/check_seconds"] = checked.seconds
        metrics["harness/check_timeout/ratio"] = (float(checked.how == "timeout"), 1)
    return metrics
