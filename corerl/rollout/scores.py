"""Scores of responses as these come."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import PartwiseRewardManager, RewardManager, RewardResult
from corerl.foreign import contained, harmless
from corerl.rollout.scoring import check_results
from corerl.threads import in_thread

MANAGER = "the reward manager"


@dataclasses.dataclass(eq=False)
class Part:
    """Responses that are scored together with others of their batch.

    Attributes:
        rollouts: None as long as they are generated.
        results: of a manager of whole batches, once the last part of the batch is there.
    """

    batch: str
    place: int
    rollouts: Rollouts | None = None
    results: "asyncio.Future[list[RewardResult]]" = dataclasses.field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Scores:
    """Gives responses to the reward manager: each part at once, or a whole batch if its scores depend on the batch.

    Args:
        reward: None: no response has a score.
        max_response_length: ``data.max_response_length``.
    """

    def __init__(self, reward: RewardManager | None, max_response_length: int) -> None:
        self._reward, self._max_response_length = reward, max_response_length
        self._partwise = reward if isinstance(reward, PartwiseRewardManager) else None  # a look at a protocol is slow
        self._batches: defaultdict[str, set[Part]] = defaultdict(set)

    @contextlib.contextmanager
    def expecting(self, batch: str, place: int) -> Iterator[Part]:
        """A part of a batch, from before its generation to its scores; if the block fails, its batch goes on without.

        Args:
            place: of the part in its batch: the parts are given in this order to a manager of whole batches.
        """
        part = Part(batch, place)
        self._batches[batch].add(part)
        try:
            yield part
        except BaseException:
            self._batches[batch].discard(part)
            self._score_if_whole(batch)
            raise
        finally:
            self._batches[batch].discard(part)
            if not self._batches[batch]:
                del self._batches[batch]

    async def of(self, part: Part, rollouts: Rollouts) -> list[RewardResult] | None:
        """One result a response, or None if no response has a score.

        Raises:
            RunError: the reward manager breaks its contract.
        """
        if self._reward is None:
            return None
        if self._partwise is None:
            part.rollouts = rollouts
            self._score_if_whole(part.batch)
            return await part.results
        return await results_of_part(self._partwise, rollouts, self._max_response_length)

    def _score_if_whole(self, batch: str) -> None:
        """Score a batch once all of its parts are generated."""
        waiting = [part for part in self._batches[batch] if not part.results.done()]
        if self._reward is None or not waiting or any(part.rollouts is None for part in waiting):
            return
        waiting.sort(key=lambda part: part.place)
        parts = [(part, part.rollouts) for part in waiting if part.rollouts is not None]
        try:
            whole = Rollouts.join([rollouts for _, rollouts in parts])
            results = self._reward.score(whole.reward_requests(self._max_response_length))
            check_results(results, len(whole))
        except BaseException as error:
            for part, _ in parts:
                part.results.set_exception(harmless(error, MANAGER))
            return
        start = 0
        for part, rollouts in parts:
            part.results.set_result(results[start : start + len(rollouts)])
            start += len(rollouts)


async def results_of_part(
    reward: PartwiseRewardManager, rollouts: Rollouts, max_response_length: int
) -> list[RewardResult]:
    """One result a response.

    Raises:
        RunError: the reward manager breaks its contract.
    """

    async def score() -> list[RewardResult]:
        under_way = reward.submit(rollouts.reward_requests(max_response_length))
        if isinstance(under_way, concurrent.futures.Future):
            return await asyncio.wrap_future(under_way)
        return await in_thread(under_way.result)

    results = await contained(score, MANAGER)
    check_results(results, len(rollouts))
    return results
