"""Scorer of length: 1 for up to ``free`` characters, then falling in a straight line to 0 at ``longest``.

With n characters: min(1, max(0, (longest - n) / (longest - free))). It says nothing about the answer: weigh it beside a
scorer of correctness with ``combined``. Lengths in tokens are the business of the reward manager ``dapo``.
"""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import LengthOptions

_DEFAULT = LengthOptions()


def length(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: LengthOptions = _DEFAULT,
) -> float:
    """Between 0.0 and 1.0: how short the response is."""
    return min(1.0, max(0.0, (options.longest - len(response)) / (options.longest - options.free)))
