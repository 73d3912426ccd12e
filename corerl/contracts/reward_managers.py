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
        score: finite, or None when scoring failed: then ``error`` says why, and the sample takes no part in training.
        components: named parts of the score, for the metrics.
        extracted: what the scorer compared with the ground truth, for the reader of sample rollouts.
        error: one line, None when all went well.
        error_kind: one word for the metric ``reward/errors/<kind>``: ``timeout``, ``memory``, ``crash`` (its process
            ended), ``exception``, ``value`` (the scorer returned no number), ``unscored`` (no scorer), or one of the
            manager's own; None counts as ``other``.
    """

    score: float | None
    components: Mapping[str, float] = field(default_factory=dict)
    extracted: str | None = None
    error: str | None = None
    error_kind: str | None = None


def error_kind(result: RewardResult) -> str:
    """``result.error_kind``, ``other`` where the manager gives none."""
    return result.error_kind or "other"


class RewardManager(Protocol):
    """Scores a batch; results come in the order of the requests."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]: ...

    def close(self) -> None:
        """Give back threads and processes."""
        ...


@runtime_checkable
class PartwiseRewardManager(RewardManager, Protocol):
    """One whose scores do not depend on what else is in the batch.

    It is given a batch in parts, each as soon as its responses are generated, in whatever order they finish; one
    without ``submit`` is asked once, for the whole batch, when all are there.
    """

    def submit(self, requests: Sequence[RewardRequest]) -> Future:
        """As ``score``, without waiting: the future of a list of results. What was submitted before may be running."""
        ...


class RewardManagerFactory(Protocol):
    """Builds the manager.

    Args:
        scorers: the scorer of each data source that the run's data holds, options bound. Each is a function that can be
            imported by its name, or a ``functools.partial`` of one, wherever it was registered by its name: pickling
            it names it, so that a manager may load it in another process. Plugin files, ``./file.py``, must be loaded
            there first (:func:`corerl.registry.modules.load_file`).
        num_workers: scorers that may run at a time.
        timeout: seconds that one call of a scorer may take.
    """

    def __call__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> RewardManager: ...
