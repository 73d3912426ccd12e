"""Scores of responses as these come."""

import asyncio
import concurrent.futures
from collections import Counter

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import PartwiseRewardManager, RewardManager, RewardResult
from corerl.rollout.scoring import check_results
from corerl.threads import in_thread


class Scores:
    """Gives responses to the reward manager: each part at once, or a whole batch if its scores depend on the batch.

    Args:
        reward: None: no response has a score.
        max_response_length: ``data.max_response_length``.
    """

    def __init__(self, reward: RewardManager | None, max_response_length: int) -> None:
        self._reward, self._max_response_length = reward, max_response_length
        self._expected: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[int, Rollouts, asyncio.Future[list[RewardResult]]]]] = {}

    def expect(self, batch: str) -> None:
        """Announce one more part of a batch, before any part of the batch is scored."""
        if self._reward is not None and not isinstance(self._reward, PartwiseRewardManager):
            self._expected[batch] += 1

    async def of(self, rollouts: Rollouts, batch: str, place: int) -> list[RewardResult] | None:
        """One result a response, or None if no response has a score.

        Args:
            batch: the part's, which has been announced.
            place: of the part in its batch: the parts are given in this order to a manager of whole batches.

        Raises:
            RunError: the reward manager breaks its contract.
        """
        if self._reward is None:
            return None
        if not isinstance(self._reward, PartwiseRewardManager):
            return await self._with_batch(self._reward, rollouts, batch, place)
        under_way = self._reward.submit(rollouts.reward_requests(self._max_response_length))
        results: list[RewardResult]
        if isinstance(under_way, concurrent.futures.Future):
            results = await asyncio.wrap_future(under_way)
        else:
            results = await in_thread(under_way.result)
        check_results(results, len(rollouts))
        return results

    async def _with_batch(
        self, reward: RewardManager, rollouts: Rollouts, batch: str, place: int
    ) -> list[RewardResult]:
        """Wait until all parts of the batch that were announced are there; the last one scores them."""
        future: asyncio.Future[list[RewardResult]] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(batch, [])
        waiting.append((place, rollouts, future))
        if len(waiting) == self._expected[batch]:
            del self._waiting[batch], self._expected[batch]
            self._score(reward, sorted(waiting, key=lambda part: part[0]))
        return await future

    def _score(
        self, reward: RewardManager, parts: "list[tuple[int, Rollouts, asyncio.Future[list[RewardResult]]]]"
    ) -> None:
        whole = Rollouts.join([rollouts for _, rollouts, _ in parts])
        results = reward.score(whole.reward_requests(self._max_response_length))
        check_results(results, len(whole))
        start = 0
        for _, rollouts, future in parts:
            future.set_result(results[start : start + len(rollouts)])
            start += len(rollouts)
