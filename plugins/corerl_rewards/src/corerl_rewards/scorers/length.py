"""Scorer of length: 1 up to ``free`` characters, then falling linearly to 0 at ``longest``.

With n characters: min(1, max(0, (longest - n) / (longest - free))). It does not judge the answer: use it with a scorer
of correctness, in ``combined``. For lengths in tokens, use the reward manager ``dapo``.
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
    """A number between 0.0 and 1.0, larger for shorter responses."""
    return min(1.0, max(0.0, (options.longest - len(response)) / (options.longest - options.free)))
