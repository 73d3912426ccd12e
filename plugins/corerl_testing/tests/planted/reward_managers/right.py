"""A right reward manager, whose subclasses have one flaw each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.dispatch import Future
from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl_rewards.threads import CallQueue
from planted.fault import Fault


class Right:
    """Scores in threads."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        self.scorers = scorers
        self.queue = CallQueue(self.one, self.late, num_workers=num_workers, timeout=timeout)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order."""
        return self.queue.submit(requests).result()

    def submit(self, requests: Sequence[RewardRequest]) -> Future:
        """As :meth:`score`, without waiting."""
        return self.queue.submit(requests)

    def close(self) -> None:
        """Begin no further call."""
        self.queue.close()

    def one(self, request: RewardRequest) -> RewardResult:
        """The result of a request."""
        try:
            return self.result(self.call(request))
        except BaseException as error:
            return RewardResult(None, error=f"{type(error).__name__}: {' '.join(str(error).split())}")

    def call(self, request: RewardRequest) -> Any:
        """The scorer's return value."""
        scorer = self.scorers[request.data_source]
        return scorer(request.response, request.ground_truth, request.data_source, request.extra_info)

    def result(self, value: Any) -> RewardResult:
        """The result of a scorer's return value.

        Raises:
            ValueError: it is no number.
        """
        parts = dict(value) if isinstance(value, Mapping) else {"score": value}
        extracted = parts.pop("extracted", None)
        if any(isinstance(part, str) or not math.isfinite(part) for part in parts.values()) or "score" not in parts:
            raise ValueError(f"{value!r} is no score")
        numbers = {name: float(part) for name, part in parts.items()}
        return RewardResult(numbers.pop("score"), numbers, extracted)

    def late(self, request: RewardRequest) -> RewardResult:
        """Past the deadline."""
        return RewardResult(None, error="the scorer was late", error_kind="timeout")


class Whole(Right):
    """Accepts only whole batches, so that a subclass changes a single method."""

    submit = None  # type: ignore[assignment]

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return super().score(requests)


def fault(name: str, flaw: str, wrong: Any, check: str, reason: str, patience: float = 1.0) -> Fault:
    """One whose twin is :class:`Right`."""
    return Fault("reward_managers", name, flaw, wrong, Right, check, reason, patience=patience)
