"""The responses of a batch as they come: each is scored while others are generated."""

import dataclasses
from collections.abc import Sequence

from corerl.batch.rollouts import Rollouts
from corerl.contracts.dispatch import Future
from corerl.contracts.reward_managers import PartwiseRewardManager, RewardManager, RewardResult
from corerl.trainer.scoring import check_results


class Arrivals:
    """Parts of a batch, in any order.

    Args:
        n: responses to a prompt; those to prompt g are the rows g · n to g · n + n - 1.
        reward: scores them: each part at once, or, where that is not the manager's contract, the whole batch in the
            end. None: nobody does.
        max_response_length: ``data.max_response_length``.
    """

    def __init__(self, n: int, reward: RewardManager | None = None, max_response_length: int = 0) -> None:
        self._n, self._reward, self._max_response_length = n, reward, max_response_length
        self._rows: list[int] = []
        self._parts: list[Rollouts] = []
        self._scores: list[Future] = []

    def add(self, rows: Sequence[int], part: Rollouts) -> None:
        """Take some responses; ``rows`` says where each stands in the batch."""
        self._rows += rows
        self._parts.append(part)
        if isinstance(self._reward, PartwiseRewardManager):
            self._scores.append(self._reward.submit(part.reward_requests(self._max_response_length)))

    def rollouts(self) -> Rollouts:
        """All of them, in the order of the batch."""
        groups = [row // self._n for row in self._rows]
        return dataclasses.replace(Rollouts.join(self._parts), group_ids=groups).select(self._order())

    def results(self) -> list[RewardResult] | None:
        """One a response, in the order of the batch; None where nobody scores.

        Raises:
            RunError: the reward manager breaks its contract.
        """
        if self._reward is None:
            return None
        if not isinstance(self._reward, PartwiseRewardManager):
            rollouts = self.rollouts()
            results = self._reward.score(rollouts.reward_requests(self._max_response_length))
            check_results(results, len(rollouts))
            return results
        scored: list[RewardResult] = []
        for part, scores in zip(self._parts, self._scores, strict=True):
            of_part = scores.result()
            check_results(of_part, len(part))
            scored += of_part
        return [scored[place] for place in self._order()]

    def _order(self) -> list[int]:
        """For each row, the place at which it came."""
        return sorted(range(len(self._rows)), key=self._rows.__getitem__)
