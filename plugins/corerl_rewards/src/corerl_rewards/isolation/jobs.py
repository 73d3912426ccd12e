"""Requests on their way to a worker, and their results on the way back."""

from collections.abc import Sequence
from concurrent.futures import Future

from corerl.registry.reward_managers import RewardRequest, RewardResult
from corerl_rewards.calls import failed
from corerl_rewards.isolation.pool import frame


class Job:
    """The requests of one call of a reward manager; ``future`` has their results when all are there."""

    def __init__(self, requests: Sequence[RewardRequest]) -> None:
        self.requests = requests
        self.results: list[RewardResult | None] = [None] * len(requests)
        self.missing = len(requests)
        self.future: Future[list[RewardResult]] = Future()
        self.future.set_running_or_notify_cancel()
        if not requests:
            self.future.set_result([])


class Task:
    """One request; ``frame`` is empty when it cannot be sent, which is its result already."""

    __slots__ = ("_position", "frame", "job", "source")

    def __init__(self, job: Job, position: int) -> None:
        request = job.requests[position]
        self.job = job
        self._position = position
        self.source = request.data_source
        self.frame = b""
        try:
            self.frame = frame((request.response, request.ground_truth, self.source, request.extra_info))
        except Exception as error:
            self.done(failed("exception", f"the row of a response cannot be sent to a worker process: {error}"))

    def done(self, result: RewardResult) -> None:
        """Take the result; of several, when more than one worker was sent the request, the first counts."""
        job = self.job
        if job.results[self._position] is None:
            job.results[self._position] = result
            job.missing -= 1
            if not job.missing:
                job.future.set_result(job.results)  # type: ignore[arg-type]

    def fail(self, kind: str, what: str) -> None:
        """It has no score, for what its scorer did."""
        self.done(failed(kind, f"the scorer of '{self.source}' {what}"))

    @property
    def settled(self) -> bool:
        """Whether nobody needs to score it any more."""
        return self.job.future.done() or self.job.results[self._position] is not None
