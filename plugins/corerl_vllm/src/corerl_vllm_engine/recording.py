"""Columns of tokens from vLLM's log-probs: each position has the sampled token, then the most likely ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = tuple[NDArray[Any], NDArray[np.int32]]


def has_kept_sets(asked: "dict[str, Any]", record: "list[str]") -> bool:
    """Whether to report the kept sets of a request: a request without top-k has none of known size."""
    return "kept_tokens" in record and asked["temperature"] > 0 and asked["top_k"] > 0


def reported(asked: "dict[str, Any]", record: "list[str]", top: int, vocabulary: int) -> int:
    """The number of most likely tokens to report at each position of a request.

    Args:
        asked: the request.
        record: the columns of ``rollout.record``.
        top: tokens of a position in ``top_log_probs``.
    """
    kept = asked["top_k"] if has_kept_sets(asked, record) else 0
    return min(vocabulary, max(kept, top if "top_log_probs" in record else 0))


def columns(
    token_ids: "list[int]",
    log_probs: "list[float]",
    width: int,
    tokens: int,
    asked: "dict[str, Any]",
    record: "list[str]",
    top: int,
) -> "dict[str, Column]":
    """Name -> values and counts.

    Args:
        token_ids, log_probs: of all positions end to end, ``width`` each; log-probs of tokens that are not kept are -inf.
        tokens: positions that count.
    """
    likely = np.array(token_ids, np.int32).reshape(-1, width)[:tokens, 1:]
    values = np.array(log_probs, np.float32).reshape(-1, width)[:tokens, 1:]
    found: dict[str, Column] = {}
    if has_kept_sets(asked, record):
        kept = np.isfinite(values)
        found["kept_tokens"] = likely[kept], kept.sum(axis=1, dtype=np.int32)
    if "top_log_probs" in record:
        real = np.isfinite(values[:, :top])
        counts = real.sum(axis=1, dtype=np.int32)
        found["top_tokens"] = likely[:, :top][real], counts
        found["top_log_probs"] = values[:, :top][real], counts
    return found
