"""Distributions of scores and lengths over the responses of a step: the share of each value or range of values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from corerl_tools.report.curves import Array, rounded

MOST_COLUMNS = 160
RANGES = 36
FEW_VALUES = 10
"""up to this number of different values, each value has its own row"""


def distribution(steps: Sequence[int], values: Sequence[Array]) -> dict[str, Any] | None:
    """Shares of the values of each column of steps; None if there is no value.

    Args:
        values: of each step, the values of its responses; NaN are ignored.

    Returns:
        ``columns``: [first step, last step] of each; ``rows``: the values, or if ``edges`` is true RANGES + 1 bounds;
        ``shares``: for each column the shares of its rows, in thousandths; ``p10``, ``p50``, ``p90``: quantiles.
    """
    kept = [(step, each[np.isfinite(each)]) for step, each in zip(steps, values, strict=True)]
    kept = [(step, each) for step, each in kept if len(each)]
    if not kept:
        return None
    everything = np.concatenate([each for _, each in kept])
    different = np.unique(everything)
    few = len(different) <= FEW_VALUES
    rows = different if few else np.linspace(different[0], different[-1], RANGES + 1)
    inner = (rows[:-1] + rows[1:]) / 2 if few else rows[1:-1]
    columns, shares, quantiles = [], [], []
    for chosen in np.array_split(np.arange(len(kept)), min(MOST_COLUMNS, len(kept))):
        joined = np.concatenate([kept[index][1] for index in chosen])
        counts = np.bincount(np.searchsorted(inner, joined, side="right"), minlength=len(inner) + 1)
        columns.append([kept[chosen[0]][0], kept[chosen[-1]][0]])
        shares.append([round(1000 * count / len(joined)) for count in counts.tolist()])
        quantiles.append(np.quantile(joined, [0.1, 0.5, 0.9]))
    p10, p50, p90 = np.array(quantiles).T
    return {
        "columns": columns,
        "rows": rounded(rows),
        "edges": not few,
        "shares": shares,
        "p10": rounded(p10),
        "p50": rounded(p50),
        "p90": rounded(p90),
    }
