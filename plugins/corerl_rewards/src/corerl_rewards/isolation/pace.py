"""Durations of calls, and from them the limits for late and overdue calls."""

import math
from dataclasses import dataclass

from corerl_rewards.isolation.clock import wall_seconds
from corerl_rewards.isolation.connection import Worker
from corerl_rewards.isolation.pool import LOAD_SECONDS

LATE_FACTOR = 5
"""a call is late after this multiple of the 90th percentile of its data source"""
LATE_SECONDS = 0.1
"""least seconds for a late call; waiting for a processor counts in the percentile, but not in the call"""
MOST_MORE = 2
"""largest number of expected late calls for each known one, because the first call may be unusual"""
STEP = math.log(1.15)
"""change of a running estimate by one call, as a logarithm"""
FIRST_LOOK = 0.05
"""seconds before the first look at a call: quicker calls cost nothing"""
LOOKS = 30
"""least number of looks until a call's deadline"""
NOT_COUNTED = "waiting for a processor or the disk does not count"
SHORTEST_LOOK = 0.005
LONGEST_LOOK = 0.5


@dataclass(frozen=True)
class Rules:
    """``patience`` and ``timeout``: seconds of one call; ``patience`` applies to a source without known calls."""

    num_workers: int
    timeout: float
    patience: float | None
    max_late_workers: int
    calls_per_worker: int

    def batch_seconds(self, calls: int) -> float:
        """The deadline of a batch of calls: the longest possible sequence of them, and the loading of the scorers."""
        return wall_seconds(LOAD_SECONDS) + (2 + math.ceil(calls / self.num_workers)) * wall_seconds(self.timeout)


class Pace:
    """Times are of ``time.monotonic``."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._look = min(max(rules.timeout / LOOKS, SHORTEST_LOOK), LONGEST_LOOK)
        self._quantiles: dict[str, tuple[float, float]] = {}
        """data source -> running estimates of the median and the 90th percentile of its calls' seconds"""
        self._answered = 0

    def begin(self) -> None:
        """Work begins after idleness."""
        self._answered = 0

    def still_late(self, known: int, waiting: int) -> int:
        """The expected number of late calls among those that are waiting."""
        return min(MOST_MORE * known, math.ceil(waiting * known / (self._answered + known))) if known else 0

    def took(self, source: str, seconds: float) -> None:
        """Record the duration of a finished call."""
        self._answered += 1
        half, most = self._quantiles.get(source, (seconds, seconds))
        self._quantiles[source] = _moved(half, seconds, 0.5), _moved(most, seconds, 0.9)

    def expected(self, source: str) -> float:
        """Seconds of a data source's next call; infinite if unknown."""
        return self._quantiles[source][0] if source in self._quantiles else math.inf

    def next_look(self, worker: Worker) -> float:
        """The time of the next look at a call's clock."""
        clock = worker.clock
        if clock.is_new:
            return clock.since + min(FIRST_LOOK, self._look)
        mark = clock.end(self._rules.timeout)
        if not worker.late and self._rules.patience is not None:
            counted, passed = self._marks(worker)
            mark = min(mark, max(clock.looked + counted - clock.counted, clock.since + passed))
        return max(min(mark, clock.looked + self._look), clock.looked + SHORTEST_LOOK)

    def is_late(self, worker: Worker) -> bool:
        """Whether a running call shall no longer delay other calls."""
        if worker.late or self._rules.patience is None:
            return False
        counted, passed = self._marks(worker)
        return worker.clock.counted >= counted and worker.clock.passed >= passed

    def over(self, worker: Worker) -> str:
        """The error of a call past its deadline; empty for other calls."""
        clock, timeout = worker.clock, self._rules.timeout
        if clock.counted >= timeout:
            return f"ran past reward.timeout ({timeout:g} s); {NOT_COUNTED}"
        if clock.is_past(timeout):
            return (
                f"was not done after {clock.passed:.3g} s, of which {clock.counted:.2g} s count towards reward.timeout "
                f"({timeout:g} s): the machine is too busy; {NOT_COUNTED}"
            )
        return ""

    def _marks(self, worker: Worker) -> tuple[float, float]:
        """For a late call: least counted seconds, and least wall-clock seconds."""
        known = self._quantiles.get(worker.tasks[0].source)
        if known is None:
            assert self._rules.patience is not None
            return self._rules.patience, 0.0
        return LATE_SECONDS, LATE_FACTOR * known[1]


def _moved(quantile: float, seconds: float, share: float) -> float:
    """A quantile after one more call: it is stable if ``share`` of the calls are shorter."""
    step = 2 * STEP * (share if seconds > quantile else share - 1)
    return max(quantile * math.exp(step), 1e-6)
