"""How long calls take, and from it when one is late and when its time is over."""

import math
from dataclasses import dataclass

from corerl_rewards.isolation.clock import wall_seconds
from corerl_rewards.isolation.connection import Worker
from corerl_rewards.isolation.pool import LOAD_SECONDS

LATE_FACTOR = 5
"""a call is late that takes so many times as long as nine of ten of its data source's do at most"""
LATE_SECONDS = 0.1
"""at least, of what counts; in what the others took, waiting for a processor does"""
MOST_MORE = 2
"""so many late calls are expected for each that is known, at most: the first may not be as the rest"""
STEP = math.log(1.15)
"""by how much, as a logarithm, one call moves what is known"""
FIRST_LOOK = 0.05
"""a call is first looked at after so many seconds: quicker ones cost nothing"""
LOOKS = 30
"""and then so many times until its deadline, at least"""
NOT_COUNTED = "waiting for a processor or the disk does not count"
SHORTEST_LOOK = 0.005
LONGEST_LOOK = 0.5


@dataclass(frozen=True)
class Rules:
    """``patience`` and ``timeout`` are seconds of one call; ``patience`` where no other is known to compare with."""

    num_workers: int
    timeout: float
    patience: float | None
    max_late_workers: int
    calls_per_worker: int

    def batch_seconds(self, calls: int) -> float:
        """The deadline of so many calls: those of as many as follow each other at most, and the loading of scorers."""
        return wall_seconds(LOAD_SECONDS) + (2 + math.ceil(calls / self.num_workers)) * wall_seconds(self.timeout)


class Pace:
    """Moments are those of ``time.monotonic``."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._look = min(max(rules.timeout / LOOKS, SHORTEST_LOOK), LONGEST_LOOK)
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

    def next_look(self, worker: Worker) -> float:
        """When the clock of a call must be looked at again."""
        clock = worker.clock
        if clock.is_new:
            return clock.since + min(FIRST_LOOK, self._look)
        mark = clock.end(self._rules.timeout)
        if not worker.late and self._rules.patience is not None:
            counted, passed = self._marks(worker)
            mark = min(mark, max(clock.looked + counted - clock.counted, clock.since + passed))
        return max(min(mark, clock.looked + self._look), clock.looked + SHORTEST_LOOK)

    def is_late(self, worker: Worker) -> bool:
        """Whether a call that goes on shall keep nobody waiting."""
        if worker.late or self._rules.patience is None:
            return False
        counted, passed = self._marks(worker)
        return worker.clock.counted >= counted and worker.clock.passed >= passed

    def over(self, worker: Worker) -> str:
        """What to say of a call whose time is over; empty for all others."""
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
        """Of a late call at least so many seconds count, and so many have passed."""
        known = self._quantiles.get(worker.tasks[0].source)
        if known is None:
            assert self._rules.patience is not None
            return self._rules.patience, 0.0
        return LATE_SECONDS, LATE_FACTOR * known[1]


def _moved(quantile: float, seconds: float, share: float) -> float:
    """A quantile after one more call: it rests where ``share`` of the calls are shorter."""
    step = 2 * STEP * (share if seconds > quantile else share - 1)
    return max(quantile * math.exp(step), 1e-6)
