"""The part of a call's time that counts against its deadline.

Time in which a process waits for a processor or the disk depends on the machine, so it does not count. A process does
not know how long it waited, and the kernel has no sum over ended processes, so :class:`Clock` looks many times during a
call. If a process of the call runs or waits for a processor or the disk, only the processor time since the last look
counts; otherwise all the time since then counts. So a call that sleeps, waits for a server or is stopped has
``timeout`` seconds of wall-clock time, and a call that computes has as many seconds of processor time.
"""

import time

from corerl_rewards.isolation import linux

MOST_TIMES = 10
LEAST_SECONDS = 300.0
"""factor of the deadline, and least seconds, after which a call ends by the wall clock, counted or not"""

STOPPED_SECONDS = 2.0
"""seconds after which a stopped process is replaced, because it may never be continued"""


def wall_seconds(seconds: float) -> float:
    """The longest wall-clock time of a call with a deadline of ``seconds``."""
    return max(MOST_TIMES * seconds, LEAST_SECONDS)


class Clock:
    """The clock of one call.

    Attributes:
        since: start of the call, by ``time.monotonic``.
        looked: time of the last look.
        counted: seconds from ``since`` to ``looked`` that count.
        stopped: seconds between looks that both found the process stopped.
    """

    __slots__ = ("_used", "_was_stopped", "counted", "looked", "since", "stopped")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start a call."""
        self.since = self.looked = time.monotonic()
        self.counted = self.stopped = 0.0
        self._used: float | None = None
        self._was_stopped = False

    def look(self, pid: int, *, family: bool = True) -> None:
        """Count the time since the last look; ``family``: count the process's descendants too."""
        now = time.monotonic()
        used, wants = linux.activity(pid, family=family)
        passed = now - self.looked
        if not wants:
            self.counted += passed
        elif self._used is not None:  # otherwise unknown, and the next look comes soon
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
        """Whether there was no look since the call began."""
        return self._used is None

    def is_past(self, seconds: float) -> bool:
        """Whether a deadline is over."""
        return self.counted >= seconds or self.passed >= wall_seconds(seconds)

    def end(self, seconds: float) -> float:
        """The earliest time at which a deadline can be over."""
        return min(self.looked + seconds - self.counted, self.since + wall_seconds(seconds))
