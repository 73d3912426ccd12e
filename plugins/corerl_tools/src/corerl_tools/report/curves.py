"""Curves for a screen: of a long run, mean, minimum and maximum of a bounded number of parts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 1000
"""points of a curve, more than the columns of a screen"""

DIGITS = 5
"""significant digits of a number"""

Array = NDArray[np.float64]


def curves(records: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The metrics of a run, by name.

    Returns:
        ``grids``: one for each distinct set of steps with a measured metric; of each point: ``step``, ``hours``
        (training and evaluation up to the step) and ``tokens`` (trained so far). ``metrics``: name -> ``grid``,
        ``mean``, and for a curve that was cut into parts also ``min`` and ``max``. Non-finite values are null.
    """
    steps = np.array([record["step"] for record in records], float)
    seconds = sum(_column(records, f"timing_s/{part}", 0.0) for part in ("step", "testing"))
    axes = {
        "step": steps,
        "hours": np.cumsum(seconds) / 3600,
        "tokens": np.cumsum(_column(records, "perf/total_num_tokens", 0.0)),
    }
    grids: list[dict[str, Any]] = []
    numbers: dict[bytes, int] = {}
    metrics = {}
    for name in sorted({name for record in records for name in record if name != "step"}):
        values = _column(records, name, np.nan)
        present = np.array([name in record for record in records])
        key = present.tobytes()
        if key not in numbers:
            numbers[key] = len(grids)
            grids.append({axis: rounded(parts(of_axis[present])[0], 8) for axis, of_axis in axes.items()})
        mean, least, largest = parts(values[present])
        metrics[name] = {"grid": numbers[key], "mean": rounded(mean)}
        if present.sum() > MOST_POINTS:
            metrics[name] |= {"min": rounded(least), "max": rounded(largest)}
    return {"grids": grids, "metrics": metrics}


def parts(values: Array, most: int = MOST_POINTS) -> tuple[Array, Array, Array]:
    """Mean, minimum and maximum of at most ``most`` successive parts of nearly equal size.

    Non-finite numbers count only if a part has no other.
    """
    if len(values) <= most:
        return values, values, values
    starts = np.arange(most) * len(values) // most
    finite = np.isfinite(values)
    count = np.add.reduceat(finite.astype(float), starts)
    total = np.add.reduceat(np.where(finite, values, 0.0), starts)
    least = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    largest = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count, least, largest


def rounded(values: Array, digits: int = DIGITS) -> list[float | None]:
    """Plain numbers for JSON; whole numbers without a decimal point."""
    return [_short(value, digits) if np.isfinite(value) else None for value in values.tolist()]


def _short(value: float, digits: int) -> float:
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _column(records: Sequence[dict[str, float]], name: str, missing: float) -> Array:
    return np.array([record.get(name, missing) for record in records], float)
