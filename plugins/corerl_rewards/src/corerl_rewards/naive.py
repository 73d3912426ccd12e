"""Reward manager ``naive``: each completion is scored by the scorer of its data source, in a thread."""

from collections.abc import Mapping, Sequence

from corerl.contracts.dispatch import Future
from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.threads import CallQueue
from corerl_rewards.calls import late, score_one


class NaiveRewardManager:
    """Scores in ``num_workers`` threads.

    A scorer that raises, returns no finite number or runs longer than ``timeout`` seconds gives a result with ``error``
    and no score; other requests are unaffected. Python cannot stop a thread: a hanging thread is left behind as a
    daemon, which delays neither the batch nor the end of the process, and is replaced. A scorer that crashes, fills the
    memory or never releases the interpreter lock ends the run; with ``parallel`` it does not.
    """

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        self.scorers = scorers
        self.timeout = timeout
        self._calls = CallQueue(self.score_one, self._late, num_workers=num_workers, timeout=timeout)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order."""
        return self._calls.submit(requests).result()

    def submit(self, requests: Sequence[RewardRequest]) -> Future:
        """As :meth:`score`, without waiting."""
        return self._calls.submit(requests)

    def score_one(self, request: RewardRequest) -> RewardResult:
        """Score in this thread; an exception becomes the result's ``error``."""
        return score_one(self.scorers, request.response, request.ground_truth, request.data_source, request.extra_info)

    def close(self) -> None:
        """Start no further call."""
        self._calls.close()

    def _late(self, request: RewardRequest) -> RewardResult:
        return late(f"the scorer of '{request.data_source}'", self.timeout)
