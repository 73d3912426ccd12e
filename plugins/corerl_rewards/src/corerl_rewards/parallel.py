"""Reward manager ``parallel``: scorers run in worker processes, so an endless loop or a crash ends only its call."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl_rewards.isolation.dispatcher import Dispatcher
from corerl_rewards.isolation.pace import Rules
from corerl_rewards.isolation.pool import Pool
from corerl_rewards.isolation.worker import Limits
from corerl_rewards.options import ParallelOptions

_DEFAULT = ParallelOptions()


class ParallelRewardManager:
    """Scores in ``num_workers`` processes.

    A call that raises, returns no finite number, runs longer than ``timeout`` seconds, uses more memory than
    ``memory_limit_gb``, exits, crashes or closes its files gives a result with ``error`` and no score. The process of
    such a call is killed with its child processes and replaced; other calls are unaffected. A call that takes much
    longer than the others of its data source delays no other call: further workers are started.

    Time in which a call waits for a processor or the disk does not count. By the wall clock a call may take ten times
    ``timeout``, at least 300 s (:mod:`corerl_rewards.isolation.clock`).

    Safe to call from several threads. The processes start on creation, and end with :meth:`close` or with the end of
    this process, even if it is killed.
    """

    def __init__(
        self,
        scorers: Mapping[str, Scorer],
        *,
        num_workers: int,
        timeout: float,
        options: ParallelOptions = _DEFAULT,
    ) -> None:
        """
        Raises:
            PluginError: a scorer is not a function that another process can import.
        """
        limit = options.memory_limit_gb
        pool = Pool(scorers, Limits(None if limit is None else int(limit * 2**30)))
        rules = Rules(num_workers, timeout, options.patience, options.max_late_workers, options.calls_per_worker)
        self._dispatcher = Dispatcher(pool, rules)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order.

        Raises:
            RunError: the worker processes cannot be started.
        """
        return self.submit(requests).result() if requests else []

    def submit(self, requests: Sequence[RewardRequest]) -> "Future[list[RewardResult]]":
        """As :meth:`score`, without waiting."""
        return self._dispatcher.submit(requests)

    def close(self) -> None:
        """Stop the workers; a caller that still waits for results gets a RunError."""
        self._dispatcher.close()
