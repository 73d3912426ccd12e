"""Batch filters: whether a group is worth training on (dynamic sampling)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FilterInputs:
    """Inputs: B responses.

    Attributes:
        scores: (B,) float32, 0 without a score.
        scored: (B,) bool, the responses with a score.
        group_ids: (B,) int64, 0 … G-1, equal for responses to one prompt.
        components: name -> (B,) float32, named parts of the scores, 0 in a row without the part.
    """

    scores: "Tensor"
    scored: "Tensor"
    group_ids: "Tensor"
    components: Mapping[str, "Tensor"] = field(default_factory=dict)


class BatchFilter(Protocol):
    """A pure, vectorised function that keeps whole groups. With options it takes ``options``.

    The trainer calls it for each scored group, and replaces a dropped group by the next of the data. A step generates
    at most ``algorithm.filter_groups.max_num_gen_batches`` batches.

    Returns:
        (B,) bool, true on kept rows, equal within a group.
    """

    def __call__(self, inputs: FilterInputs) -> "Tensor": ...
