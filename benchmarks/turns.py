"""Contenders that take turns, a step each, within one run: what each costs beside the first.

A process may be a few per cent quicker than the next by itself, and a machine is quicker now than later. Within a run,
and among steps beside each other, neither matters. All contenders have a step in each round, in an order drawn anew.
"""

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROUNDS_LEFT_OUT = 2
"""in which the run is still getting under way"""


@dataclass(frozen=True)
class Cost:
    """What a contender's step takes more than the first one's of the same round, as a share of a step.

    Attributes:
        median: over all rounds; ``low`` and ``high`` are the bounds of its 95% interval.
        mean: over all rounds, which has in it what is costly but rare.
        turn_s: median seconds of the contender's own steps.
    """

    median: float
    low: float
    high: float
    mean: float
    turn_s: float

    def verdict(self, limit: float) -> str:
        if self.high <= limit:
            return "ok"
        return "TOO MUCH" if self.low > limit else "more rounds needed"


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

    def costs(self, step_s: float | None = None) -> dict[str, Cost]:
        """Of all contenders, as shares of ``step_s``; None: of the first one's own median step."""
        rounds: list[dict[str, float]] = []
        size = len(self._names)
        for start in range(ROUNDS_LEFT_OUT * size, len(self._order), size):
            turns = range(start, start + size)
            rounds.append({self._order[turn]: self._moments[turn + 1] - self._moments[turn] for turn in turns})
        step_s = step_s or statistics.median(each[self._names[0]] for each in rounds)
        return {name: self._cost(name, rounds, step_s) for name in self._names}

    def _cost(self, name: str, rounds: Sequence[dict[str, float]], step_s: float) -> Cost:
        shares = sorted((each[name] - each[self._names[0]]) / step_s for each in rounds)
        # ranks between which the median lies in 95 of 100 samples: the binomial distribution's, by its normal limit
        below = max(0, math.floor(len(shares) / 2 - 0.98 * math.sqrt(len(shares))))
        low, high = shares[below], shares[-1 - below]
        turn_s = statistics.median(each[name] for each in rounds)
        return Cost(statistics.median(shares), low, high, statistics.fmean(shares), turn_s)


def print_costs(costs: Mapping[str, Cost], limit: float) -> None:
    """A table."""
    print(f"{'':<16} {'ms a turn':>10} {'cost':>7} {'95% interval':>17} {'mean':>7}   limit {limit:.0%}")
    for number, (name, cost) in enumerate(costs.items()):
        shares = f"{cost.median:7.2%} {cost.low:7.2%} to {cost.high:6.2%} {cost.mean:7.2%}   {cost.verdict(limit)}"
        print(f"{name:<16} {1000 * cost.turn_s:10.1f} {shares if number else ''}")
