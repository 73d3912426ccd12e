"""Reward manager ``batch``: calls your function once for the whole batch.

::

    def score(responses, ground_truths, data_sources, extra_infos):
        return [float(truth in response) for response, truth in zip(responses, ground_truths)]

For rewards that compare responses, or are cheaper in one call. The function runs in a thread of the run's process,
where a hanging function cannot be stopped: after its deadline its thread is left behind.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.errors import PluginError
from corerl.registry import load_object
from corerl_rewards.calls import failed, in_threads, raised, returned
from corerl_rewards.options import BatchOptions

Chunk = Sequence[RewardRequest]


class BatchRewardManager:
    """Calls ``options.function`` with four lists of one length: responses, ground truths, data sources, extra infos.

    The function returns a list: for each response a number, a mapping with ``score``, or an exception for a response
    without a score. If it raises, or returns a list of another length, no response has a score. Scorers are not used.
    """

    def __init__(
        self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float, options: BatchOptions
    ) -> None:
        """
        Raises:
            PluginError: the function cannot be imported.
        """
        self._options = options
        self._num_workers = num_workers
        try:
            self._function: Callable[..., Any] = load_object(options.function)
        except Exception as error:
            raise PluginError(
                f"reward.manager.function: {options.function} cannot be imported: {type(error).__name__}: {error}"
            ) from error

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order."""
        size = self._options.batch_size or max(1, len(requests))
        chunks: list[Chunk] = [requests[start : start + size] for start in range(0, len(requests), size)]
        results = in_threads(
            chunks, self._call, self._late, num_workers=self._num_workers, timeout=self._options.batch_timeout
        )
        return [result for of_chunk in results for result in of_chunk]

    def close(self) -> None:
        """Does nothing; the manager holds no resources."""

    def _call(self, chunk: Chunk) -> list[RewardResult]:
        lists = [
            [request.response for request in chunk],
            [request.ground_truth for request in chunk],
            [request.data_source for request in chunk],
            [request.extra_info for request in chunk],
        ]
        try:
            values = list(self._function(*lists))
        except BaseException as error:  # in this thread even SystemExit must become results
            return [raised(request.data_source, error) for request in chunk]
        if len(values) != len(chunk):
            why = f"{self._options.function} returned {len(values)} scores for {len(chunk)} responses"
            return [failed("value", why)] * len(chunk)
        return [
            raised(request.data_source, value)
            if isinstance(value, BaseException)
            else returned(request.data_source, value)
            for request, value in zip(chunk, values, strict=True)
        ]

    def _late(self, chunk: Chunk) -> list[RewardResult]:
        error = f"{self._options.function} ran past reward.manager.batch_timeout ({self._options.batch_timeout:g} s)"
        return [failed("timeout", error)] * len(chunk)
