"""How much of a call's time counts against its deadline.

Time in which a process waits for a processor or the disk is the machine's doing. A process does not know how long it
waited, nor does the kernel add that up for processes that ended, so :class:`Clock` looks many times during a call: if
any process of the call runs or waits for a processor or the disk, the processor time used since the last look counts,
else all the time since then does. A call that sleeps, waits for a server or is stopped therefore has ``timeout``
seconds by the clock on the wall, one that computes has as many of processor time.
"""

import time

from corerl_rewards.isolation import linux

MOST_TIMES = 10
LEAST_SECONDS = 300.0
"""a call ends after so many times its deadline by the clock on the wall, at least so many seconds, whatever counts"""

STOPPED_SECONDS = 2.0
"""after which a process that was stopped is replaced: nobody is known who would let it go on"""


def wall_seconds(seconds: float) -> float:
    """The longest that a call with a deadline of ``seconds`` lasts by the clock on the wall."""
    return max(MOST_TIMES * seconds, LEAST_SECONDS)


class Clock:
    """Of one call.

    Attributes:
        since: when the call began, as ``time.monotonic``.
        looked: when the clock was looked at last.
        counted: seconds from ``since`` to ``looked`` that count.
        stopped: seconds in which it was seen stopped at both looks.
    """

    __slots__ = ("_used", "_was_stopped", "counted", "looked", "since", "stopped")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A call begins."""
        self.since = self.looked = time.monotonic()
        self.counted = self.stopped = 0.0
        self._used: float | None = None
        self._was_stopped = False

    def look(self, pid: int, *, family: bool = True) -> None:
        """Count the time since the last look; ``family``: what the process started counts as well."""
        now = time.monotonic()
        used, wants = linux.activity(pid, family=family)
        passed = now - self.looked
        if not wants:
            self.counted += passed
        elif self._used is not None:  # else nobody knows, and the first look comes soon
            self.counted += min(passed, max(0.0, used - self._used))
        is_stopped = not wants and linux.is_stopped(pid)
        self.stopped += passed if is_stopped and self._was_stopped else 0.0
        self.looked, self._used, self._was_stopped = now, used, is_stopped

    @property
    def passed(self) -> float:
        """Seconds from ``since`` to ``looked``."""
        return self.looked - self.since

    @property
    def is_new(self) -> bool:
        """Nobody has looked since the call began."""
        return self._used is None

    def is_past(self, seconds: float) -> bool:
        """Whether a deadline is over."""
        return self.counted >= seconds or self.passed >= wall_seconds(seconds)

    def end(self, seconds: float) -> float:
        """When a deadline is over at the earliest."""
        return min(self.looked + seconds - self.counted, self.since + wall_seconds(seconds))
