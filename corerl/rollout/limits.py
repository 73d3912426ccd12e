"""The number of samples under way: fixed, or by the reports of the engines.

Enough samples are under way if a few wait in the engine for the next free place; more would only begin with older
weights. Samples grow while they are computed: if the KV cache no longer holds them, the engine preempts some and
computes them again.
"""

import math
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

    A preemption lowers the number to the samples that are left running. A queue that stands in the engine until as many
    samples have ended as it computes at most lowers the number to these, and a few; samples that have just come, or
    take the places of ended ones, wait for less time. Without both, a full turnover of all samples raises the number by
    an eighth, if so many samples are under way, up to the room of the engines, unless ``FULL`` of the cache is in use.

    Args:
        load: the engines' last report.
    """

    def __init__(self, load: Callable[[], EngineLoad | None]) -> None:
        self._load = load
        self._most: float | None = None
        self._ended = 0
        self._preempted = 0
        """the engines' number at the last look"""
        self._running = 0
        """samples that the engines computed at the last look"""
        self._turnover = _Turnover()
        self._waiting: list[int] = []
        self._usage, self._preemptions = 0.0, 0

    def begins(self, under_way: int) -> bool:
        """As a later turn: engines that report take requests at any time."""
        if self._most is None and (load := self._load()) is not None and load.room:
            self._most = _whole(load.room)
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
        self._follow(load, preempted, ended)
        self._running = load.running

    def _follow(self, load: EngineLoad, preempted: int, ended: int) -> None:
        turnover, most = self._turnover, math.inf if self._most is None else self._most
        turnover.add(load, ended)
        if preempted:
            if load.running + load.waiting <= most + _spare(load.running):  # else the last lowering has no effect yet
                before_ends = min(self._running - preempted, load.running + ended)
                self._most = max(1, min(most, max(load.running, before_ends)))
        elif self._binds(load, ended) and not turnover.waiting and load.cache_usage < FULL:
            self._most = min(most + ended / GROWTH, max(most, _whole(load.room)))
        if turnover.is_whole:
            self._turnover, spare = _Turnover(), _spare(turnover.running)
            if turnover.waiting > spare:
                self._most = min(self._most or math.inf, turnover.running + spare)

    def _binds(self, load: EngineLoad, ended: int) -> bool:
        """Whether about as many samples as allowed were under way: more of them could be."""
        under_way = load.running + load.waiting + ended
        return self._most is not None and under_way + _spare(under_way) >= self._most

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


class _Turnover:
    """A time in which all samples that the engines compute are exchanged.

    Attributes:
        running: largest number of samples that the engines computed.
        waiting: smallest number that waited.
        ended: samples.
    """

    def __init__(self) -> None:
        self.running, self.waiting, self.ended = 0, math.inf, 0

    def add(self, load: EngineLoad, ended: int) -> None:
        self.running = max(self.running, load.running)
        self.waiting = min(self.waiting, load.waiting)
        self.ended += ended

    @property
    def is_whole(self) -> bool:
        return self.ended >= max(1, self.running)


def _whole(room: int) -> float:
    """As many samples as the engines compute, and a few that wait; no bound if the room is unknown."""
    return room + _spare(room) if room else math.inf


def _spare(running: int) -> int:
    return max(1, running // SPARE)
