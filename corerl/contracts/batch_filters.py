"""Batch filters: whether a group is worth training on (dynamic sampling)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FilterInputs:
    """What a filter is given; B responses.

    Attributes:
        scores: (B,) float32, 0 where there is none.
        scored: (B,) bool, which responses have a score.
        group_ids: (B,) int64, 0 … G-1; responses to one prompt share an id.
        components: name -> (B,) float32, the named parts of the scores, 0 in a row that lacks one.
    """

    scores: "Tensor"
    scored: "Tensor"
    group_ids: "Tensor"
    components: Mapping[str, "Tensor"] = field(default_factory=dict)


class BatchFilter(Protocol):
    """A pure, vectorised function: which rows are kept, whole groups only.

    The trainer asks about each group as it is scored, and replaces one that is not kept by the next of the data. A step
    generates at most ``algorithm.filter_groups.max_num_gen_batches`` batches. With options it also takes ``options``.

    Returns:
        (B,) bool, the same for all rows of a group.
    """

    def __call__(self, inputs: FilterInputs) -> "Tensor": ...
