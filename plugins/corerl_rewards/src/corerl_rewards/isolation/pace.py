"""How long calls take, and from it when one is late and when its time is over."""

import math
import time
from dataclasses import dataclass

from corerl_rewards.isolation.pool import Worker

LATE_FACTOR = 10
"""a call is late that takes so many times as long as nine of ten of its data source's do at most"""
LATE_SECONDS = 0.1
"""at least"""
BEHIND_SECONDS = 0.1
"""a call that has been late for so long lets all others go first"""
STEP = math.log(1.15)
"""by how much, as a logarithm, one call moves what is known"""
TOGETHER = 0.1
"""deadlines of late calls that are no further apart than this share of ``timeout`` are one: that of the first"""


@dataclass(frozen=True)
class Rules:
    """``patience`` and ``timeout`` are seconds of one call; ``patience`` where no other is known to compare with."""

    num_workers: int
    timeout: float
    patience: float | None
    max_late_workers: int
    calls_per_worker: int


class Pace:
    """Moments are those of ``time.monotonic``."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._quantiles: dict[str, tuple[float, float]] = {}
        """data source -> how long half of its calls take at most, and nine of ten; running estimates"""
        self._together = -math.inf

    def took(self, source: str, seconds: float) -> None:
        """A call of a data source is over."""
        half, most = self._quantiles.get(source, (seconds, seconds))
        self._quantiles[source] = _moved(half, seconds, 0.5), _moved(most, seconds, 0.9)

    def expected(self, source: str) -> float:
        """Seconds of a data source's next call; infinite when none is known."""
        return self._quantiles[source][0] if source in self._quantiles else math.inf

    def begins(self, worker: Worker) -> None:
        """The first call of a worker begins."""
        worker.since = time.monotonic()
        worker.deadline = worker.since + self._rules.timeout

    def late(self, worker: Worker) -> None:
        """The call of a worker is late: it is to end with others that are."""
        worker.late = True
        if self._together <= worker.deadline <= self._together + TOGETHER * self._rules.timeout:
            worker.deadline = self._together
        else:
            self._together = worker.deadline

    def next_mark(self, worker: Worker) -> float:
        """When something is to be done about the call of a worker that goes on as it is."""
        if self._rules.patience is None or worker.behind:
            return worker.deadline
        known = self._quantiles.get(worker.tasks[0].source)
        late = self._rules.patience if known is None else max(LATE_SECONDS, LATE_FACTOR * known[1])
        return min(worker.since + late + (BEHIND_SECONDS if worker.late else 0.0), worker.deadline)


def _moved(quantile: float, seconds: float, share: float) -> float:
    """A quantile after one more call: it rests where ``share`` of the calls are shorter."""
    step = 2 * STEP * (share if seconds > quantile else share - 1)
    return max(quantile * math.exp(step), 1e-6)
