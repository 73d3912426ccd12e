"""The number of samples under way: fixed, or by the reports of the engines.

Enough samples are under way if a few wait in the engine for the next free place; more would only begin with older
weights. Samples grow while they are computed: if the KV cache no longer holds them, the engine preempts some and
computes them again.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping

from corerl.contracts.rollout_backends import EngineLoad

PART = 8
"""of a fixed number of samples under way that must have ended before more are sent, as one call"""
SPARE = 16
"""one sample waits in the engine for so many that it computes"""
FULL = 0.9
"""share of the KV cache in use from which the number of samples under way does not grow"""
GROWTH = 8
"""ended samples by which the number grows by one"""
STANDING = 4
"""reports whose smallest number of waiting samples counts: others have come just now, in the place of ended ones"""


class FixedLimit:
    """At most ``most`` samples; None: no limit."""

    def __init__(self, most: int | None) -> None:
        self._most = most

    def begins(self, under_way: int) -> bool:
        """Whether so many have ended that new groups are sent."""
        return self._most is None or under_way <= self._most * (1 - 1 / PART)

    def fits(self, under_way: int) -> bool:
        """Whether so many samples may be under way."""
        return self._most is None or under_way <= self._most

    def ended(self, samples: int) -> None:
        """So many samples have ended."""

    def look(self) -> None:
        """The time to follow the engines."""

    def measured(self) -> Mapping[str, float]:
        """Metrics since the last call."""
        return {}


class EngineLimit:
    """As many samples as the engines can compute, and a few that wait; no limit for engines that report no load.

    A preemption lowers the number to the samples that are left running, a queue in the engine by the samples that wait
    there all the time. Without both, a full turnover of all samples raises it by an eighth, unless ``FULL`` of
    the cache is in use.

    Args:
        load: the engines' last report.
    """

    def __init__(self, load: Callable[[], EngineLoad | None]) -> None:
        self._load = load
        self._most: float | None = None
        self._ended = 0
        self._preempted = 0
        """the engines' number at the last look"""
        self._last: deque[int] = deque(maxlen=STANDING)
        """samples that waited at the last looks"""
        self._waiting: list[int] = []
        self._usage, self._preemptions = 0.0, 0

    def begins(self, under_way: int) -> bool:
        """As a later turn: engines that report take requests at any time."""
        if self._most is None and (load := self._load()) is not None and load.room:
            self._most = load.room + _spare(load.room)
        return True

    def fits(self, under_way: int) -> bool:
        """Whether so many samples may be under way."""
        return self._most is None or under_way <= self._most

    def ended(self, samples: int) -> None:
        """So many samples have ended."""
        self._ended += samples

    def look(self) -> None:
        """Follow the engines' last report."""
        load = self._load()
        if load is None:
            return
        preempted, self._preempted = max(0, load.preempted - self._preempted), load.preempted
        ended, self._ended = self._ended, 0
        self._waiting.append(load.waiting)
        self._usage = max(self._usage, load.cache_usage)
        self._preemptions += preempted
        self._last.append(load.waiting)
        self._follow(load, preempted, ended)

    def _follow(self, load: EngineLoad, preempted: int, ended: int) -> None:
        spare, standing = _spare(load.running), min(self._last)
        most = math.inf if self._most is None else self._most
        if preempted:
            if load.running + load.waiting <= most + spare:  # else the last lowering has not come into effect
                self._most = max(1, min(most, load.running))
        elif standing > spare:
            self._most = min(most, load.running + load.waiting - standing + spare)
        elif not standing and load.cache_usage < FULL and self._most is not None:
            self._most += ended / GROWTH

    def measured(self) -> Mapping[str, float]:
        """Metrics since the last call; none without a report."""
        waiting, self._waiting = self._waiting, []
        usage, self._usage = self._usage, 0.0
        preemptions, self._preemptions = self._preemptions, 0
        if not waiting or self._most is None:
            return {}
        return {
            "rollout/requests/limit": float(int(self._most)),
            "rollout/requests/waiting_in_engine": sum(waiting) / len(waiting),
            "rollout/requests/preempted": float(preemptions),
            "rollout/kv_cache_usage/max": usage,
        }


def _spare(running: int) -> int:
    return max(1, running // SPARE)
