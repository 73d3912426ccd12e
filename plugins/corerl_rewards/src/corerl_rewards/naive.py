"""Reward manager ``naive``: each completion is scored by the scorer of its data source, in threads."""

import threading
import time
from collections.abc import Mapping, Sequence

from corerl.registry.reward_managers import RewardRequest, RewardResult
from corerl.registry.scorers import Scorer
from corerl_rewards.calls import failed, score_one

ALONE = 0.02
"""seconds that the first thread scores alone: threads in each other's way make quick scorers several times slower"""


class NaiveRewardManager:
    """Scores in ``num_workers`` threads.

    A scorer that raises, returns no finite number or runs longer than ``timeout`` seconds gives a result with ``error``
    and no score; the other requests are unaffected. Python cannot end a thread: one that hangs is left behind as a
    daemon, which holds up neither the batch nor the end of the process, and another takes its place.
    """

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        self.scorers = scorers
        self.num_workers = num_workers
        self.timeout = timeout

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order."""
        return _Batch(self, requests).run() if requests else []

    def score_one(self, request: RewardRequest) -> RewardResult:
        """Score in this thread; whatever the scorer raises becomes the result's ``error``."""
        return score_one(self.scorers, request.response, request.ground_truth, request.data_source, request.extra_info)

    def close(self) -> None:
        """Nothing to give back: threads end with their batch."""


class _Batch:
    """One call of :meth:`NaiveRewardManager.score`: threads that each take the next request until none is left.

    Nothing is scheduled for each request, so a quick scorer costs a lock and a clock reading more than its own time.
    """

    def __init__(self, manager: NaiveRewardManager, requests: Sequence[RewardRequest]) -> None:
        self._manager = manager
        self._requests = requests
        self._results: list[RewardResult | None] = [None] * len(requests)
        self._next = 0
        self._running: dict[threading.Thread, tuple[int, float]] = {}
        """thread -> the request it is scoring, and since when; one that is not here was given up"""
        self._changed = threading.Condition()

    def run(self) -> list[RewardResult]:
        with self._changed:
            self._start_thread()
            try:
                self._changed.wait(min(ALONE, self._until_deadline()))
                for _ in range(self._manager.num_workers - 1):
                    self._start_thread()
                while self._running:
                    self._give_up_late()
                    self._changed.wait(self._until_deadline())
            finally:
                self._running.clear()  # after an interrupt, threads end with the request they have
        return [result for result in self._results if result is not None]

    def _start_thread(self) -> None:
        """Start one more worker, its first request taken; the lock is held."""
        if self._next < len(self._requests):
            thread = threading.Thread(target=self._work, args=(self._next,), name="corerl-reward", daemon=True)
            self._take(thread)
            thread.start()

    def _take(self, thread: threading.Thread) -> int:
        index, self._next = self._next, self._next + 1
        self._running[thread] = (index, time.monotonic())
        return index

    def _work(self, index: int) -> None:
        thread = threading.current_thread()
        while True:
            result = self._manager.score_one(self._requests[index])
            with self._changed:
                if thread not in self._running:
                    return
                self._results[index] = result
                if self._next == len(self._requests):
                    del self._running[thread]
                    self._changed.notify()
                    return
                index = self._take(thread)

    def _give_up_late(self) -> None:
        """Turn every request past its deadline into an error; a new thread takes the place of its worker."""
        now, timeout = time.monotonic(), self._manager.timeout
        late = [thread for thread, (_, start) in self._running.items() if now - start >= timeout]
        for thread in late:
            index, _ = self._running.pop(thread)
            source = self._requests[index].data_source
            self._results[index] = failed(
                "timeout", f"the scorer of '{source}' ran past reward.timeout ({timeout:g} s)"
            )
            self._start_thread()

    def _until_deadline(self) -> float:
        """Seconds until the longest-running scorer is late; 0 when nothing runs any more."""
        starts = [start for _, start in self._running.values()]
        return max(0.0, min(starts) + self._manager.timeout - time.monotonic()) if starts else 0.0
