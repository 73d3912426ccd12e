"""How long calls take, and from it when one is late and when its time is over."""

import math
from dataclasses import dataclass

from corerl_rewards.isolation.pool import Worker

LATE_FACTOR = 5
"""a call is late that takes so many times as long as nine of ten of its data source's do at most"""
LATE_SECONDS = 0.1
"""at least; waiting for a processor does not count here, as it does in what the others took"""
BEHIND_FACTOR = 2
"""a call that takes so many times as long as makes it late lets all others go first"""
MOST_MORE = 2
"""so many late calls are expected for each that is known, at most: the first may not be as the rest"""
STEP = math.log(1.15)
"""by how much, as a logarithm, one call moves what is known"""


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
        self._answered = 0

    def begin(self) -> None:
        """There was nothing to do, and now there is."""
        self._answered = 0

    def still_late(self, known: int, waiting: int) -> int:
        """How many of the calls that are waiting will be late, where so many are."""
        return min(MOST_MORE * known, math.ceil(waiting * known / (self._answered + known))) if known else 0

    def took(self, source: str, seconds: float) -> None:
        """A call of a data source is over."""
        self._answered += 1
        half, most = self._quantiles.get(source, (seconds, seconds))
        self._quantiles[source] = _moved(half, seconds, 0.5), _moved(most, seconds, 0.9)

    def expected(self, source: str) -> float:
        """Seconds of a data source's next call; infinite when none is known."""
        return self._quantiles[source][0] if source in self._quantiles else math.inf

    def deadline(self, worker: Worker) -> float:
        """When the call of a worker is to be ended."""
        return worker.since + self._rules.timeout

    def next_mark(self, worker: Worker) -> float:
        """When something is to be done about the call of a worker that goes on as it is."""
        if self._rules.patience is None or worker.behind:
            return self.deadline(worker)
        known = self._quantiles.get(worker.tasks[0].source)
        factor = BEHIND_FACTOR if worker.late else 1
        least, late = (self._rules.patience, 0.0) if known is None else (LATE_SECONDS, LATE_FACTOR * known[1])
        return min(worker.since + max(factor * least + worker.excused, factor * late), self.deadline(worker))


def _moved(quantile: float, seconds: float, share: float) -> float:
    """A quantile after one more call: it rests where ``share`` of the calls are shorter."""
    step = 2 * STEP * (share if seconds > quantile else share - 1)
    return max(quantile * math.exp(step), 1e-6)
