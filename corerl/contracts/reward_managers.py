"""Reward managers: completions in, scores out, with deadlines and errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from corerl.contracts.dispatch import Future
from corerl.contracts.scorers import Scorer


@dataclass(frozen=True)
class RewardRequest:
    """One completion with the record of its prompt."""

    response: str
    ground_truth: Any
    data_source: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    response_length: int = 0
    """tokens in the response"""
    max_response_length: int = 0
    """tokens that the response could have had at most, ``data.max_response_length``"""
    truncated: bool = False
    """the response ended by its length, not by a stop token"""
    prompt: Sequence[Mapping[str, Any]] = ()
    """the chat messages that it answers, each with ``role`` and ``content``"""


@dataclass(frozen=True)
class RewardResult:
    """One score.

    Attributes:
        score: finite, or None after a failure: ``error`` has the reason, and the sample takes no part in training.
        components: named parts of the score, for the metrics.
        extracted: the text that the scorer compared with the ground truth, for sample rollouts.
        error: one line, or None.
        error_kind: one word for the metric ``reward/errors/<kind>``: ``timeout``, ``memory``, ``crash`` (end of its
            process), ``exception``, ``value`` (no number), ``unscored`` (no scorer), or the manager's own; None counts
            as ``other``.
    """

    score: float | None
    components: Mapping[str, float] = field(default_factory=dict)
    extracted: str | None = None
    error: str | None = None
    error_kind: str | None = None


def error_kind(result: RewardResult) -> str:
    """``result.error_kind``, or ``other``."""
    return result.error_kind or "other"


class RewardManager(Protocol):
    """Scores a batch; results are in the order of the requests."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]: ...

    def close(self) -> None:
        """End threads and processes."""
        ...


@runtime_checkable
class PartwiseRewardManager(RewardManager, Protocol):
    """A manager whose scores do not depend on the rest of the batch.

    It gets a batch in parts as responses are generated, in any order. A manager without ``submit`` gets the whole batch
    at the end.
    """

    def submit(self, requests: Sequence[RewardRequest]) -> Future:
        """As ``score``, without waiting: the future of a list of results. Earlier calls may still be running."""
        ...


class RewardManagerFactory(Protocol):
    """Builds the manager.

    Args:
        scorers: data source -> scorer, options bound: a function that can be imported by its name, or a
            ``functools.partial`` of one. Its pickle is its name, so another process can load it, after the plugin
            files, ``./file.py`` (:func:`corerl.registry.modules.load_file`).
        num_workers: largest number of concurrent scorers.
        timeout: deadline of one call of a scorer, in seconds.
    """

    def __call__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> RewardManager: ...
