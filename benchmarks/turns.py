"""Contenders that take turns, a step each, within one run: what each costs beside the first.

A process may be a few per cent quicker than the next by itself, and a machine is quicker now than later. Within a run,
and among steps beside each other, neither matters. All contenders have a step in each round, in an order drawn anew.
"""

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDS_LEFT_OUT = 2
"""in which the run is still getting under way"""


@dataclass(frozen=True)
class Cost:
    """Of a contender's step, as a share of the step of the first contender in the same round.

    Attributes:
        median: over all rounds; ``low`` and ``high`` are the bounds of its 95% interval.
        mean: of all steps beside all steps, which has in it what is costly but rare.
    """

    median: float
    low: float
    high: float
    mean: float
    step_s: float

    def verdict(self, limit: float) -> str:
        if self.high <= limit:
            return "ok"
        return "TOO MUCH" if self.low > limit else "more rounds needed"

    def row(self, name: str, limit: float) -> str:
        numbers = f"{self.median:7.2%} {self.low:7.2%} to {self.high:6.2%} {self.mean:7.2%}"
        return f"{name:<16} {1000 * self.step_s:10.1f} {numbers}   {self.verdict(limit)}"


HEAD = f"{'':<16} {'ms a step':>10} {'cost':>7} {'95% interval':>17} {'mean':>7}"


class Turns:
    """The first of ``names`` is what the others are compared with."""

    def __init__(self, names: Sequence[str], rounds: int) -> None:
        self._names = names
        draw = random.Random(0)
        self._order = [name for _ in range(ROUNDS_LEFT_OUT + rounds) for name in draw.sample(list(names), len(names))]
        self._moments: list[float] = []

    @property
    def steps(self) -> int:
        """How many there must be: the last ends the turn before it."""
        return len(self._order) + 1

    def next(self) -> str:
        """A turn ends, and that of the one returned begins; '' after the last."""
        self._moments.append(time.perf_counter())
        return self._order[len(self._moments) - 1] if len(self._moments) < self.steps else ""

    def costs(self) -> dict[str, Cost]:
        """Of all contenders."""
        rounds: list[dict[str, float]] = []
        size = len(self._names)
        for start in range(ROUNDS_LEFT_OUT * size, len(self._order), size):
            turns = range(start, start + size)
            rounds.append({self._order[turn]: self._moments[turn + 1] - self._moments[turn] for turn in turns})
        return {name: self._cost(name, rounds) for name in self._names}

    def _cost(self, name: str, rounds: Sequence[dict[str, float]]) -> Cost:
        own, first = ([each[which] for each in rounds] for which in (name, self._names[0]))
        shares = sorted(mine / other - 1 for mine, other in zip(own, first, strict=True))
        # ranks between which the median lies in 95 of 100 samples: the binomial distribution's, by its normal limit
        below = max(0, math.floor(len(shares) / 2 - 0.98 * math.sqrt(len(shares))))
        return Cost(
            statistics.median(shares),
            shares[below],
            shares[-1 - below],
            sum(own) / sum(first) - 1,
            statistics.median(own),
        )
