"""The scorer ``optimal_value``: a number of the row, as a part of a combined score."""

from collections.abc import Mapping
from typing import Any

KEY = "optimal_value"


def optimal_value(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    """``extra_info["optimal_value"]``, the same for every response.

    Raises:
        KeyError: the row has none.
    """
    return float(extra_info[KEY])
