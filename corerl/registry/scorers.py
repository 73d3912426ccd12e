"""Scorers: one response against its ground truth."""

from collections.abc import Mapping
from typing import Any, Protocol


class Scorer(Protocol):
    """A plain function, called once a response, from several threads at a time.

    Args:
        response: the decoded text, special tokens left out.
        ground_truth: ``reward_model.ground_truth`` of the prompt's row.
        data_source: ``data_source`` of the row.
        extra_info: ``extra_info`` of the row, {} where it has none.

    Returns:
        The score, or a mapping with ``score`` and further named components (floats), and optionally ``extracted``,
        the text that was compared. An exception becomes an error of that sample and never a score.
    """

    def __call__(
        self, response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]
    ) -> float | Mapping[str, Any]: ...
