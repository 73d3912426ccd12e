"""How long a run will still take, from the pace since it began to report."""

import time
from datetime import timedelta


class Clock:
    """Counts steps up to ``total_steps``."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps, self.step = total_steps, 0
        self._first: tuple[int, float] | None = None
        self._last = 0.0

    def tick(self, step: int) -> None:
        """A step is done."""
        self.step, self._last = step, time.monotonic()
        if self._first is None:
            self._first = step, self._last

    def left(self) -> str:
        """``0:12:30``; '' before two steps are done."""
        if self._first is None or self.step == self._first[0]:
            return ""
        first, since = self._first
        pace = (self._last - since) / (self.step - first)
        seconds = pace * (self.total_steps - self.step) - (time.monotonic() - self._last)
        return str(timedelta(seconds=max(0, round(seconds))))
