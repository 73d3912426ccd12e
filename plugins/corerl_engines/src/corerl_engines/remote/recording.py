"""Columns of tokens from the most likely tokens that an engine reports at each position."""

from typing import Any

import numpy as np

KEPT, TOP = "kept_tokens", "top_log_probs"


class Recording:
    """The columns of ``rollout.record``.

    Args:
        record: their names.
        top: tokens of a position in ``top_log_probs``.
    """

    def __init__(self, record: "list[str]", top: int) -> None:
        self.keeps = KEPT in record
        self.top = top if TOP in record else 0

    def has_kept_sets(self, asked: "dict[str, Any]") -> bool:
        """Whether kept sets of a request are recorded: without top-k their size has no limit."""
        return self.keeps and asked["temperature"] > 0 and asked["top_k"] > 0

    def reported(self, asked: "dict[str, Any]", vocabulary: int) -> int:
        """The number of most likely tokens that the engine is to report at each position of a request."""
        kept = asked["top_k"] if self.has_kept_sets(asked) else 0
        return min(vocabulary, max(kept, self.top))

    def columns(self, asked: "dict[str, Any]", token_ids: Any, log_probs: Any) -> "dict[str, tuple[Any, Any]]":
        """Name -> (values, counts).

        Args:
            token_ids, log_probs: (tokens, k), the likeliest first; -inf for tokens that are not kept.
        """
        real = np.isfinite(log_probs)
        found = {}
        if self.has_kept_sets(asked):
            found[KEPT] = token_ids[real].astype(np.int32), real.sum(axis=1, dtype=np.int32)
        if self.top:
            first = real[:, : self.top]
            counts = first.sum(axis=1, dtype=np.int32)
            found["top_tokens"] = token_ids[:, : self.top][first].astype(np.int32), counts
            found[TOP] = log_probs[:, : self.top][first].astype(np.float32), counts
        return found
