"""Which parts of a step pass just now: timers write it, the live view reads it from a thread of its own."""

import time


class Activity:
    """The step under way.

    Attributes:
        began: part -> when it began, by ``time.perf_counter``, of the parts under way.
        taken: part -> seconds, of the step's parts that are done.
    """

    def __init__(self) -> None:
        self.began: dict[str, float] = {}
        self.taken: dict[str, float] = {}

    def begin(self, part: str, now: float) -> None:
        """A part begins; with ``step`` the step does."""
        if part == "step":
            self.taken = {}
        self.began[part] = now

    def end(self, part: str, seconds: float) -> None:
        """A part took so many seconds; it may do so several times in a step."""
        self.began.pop(part, None)
        self.taken[part] = self.taken.get(part, 0.0) + seconds

    def spent(self) -> dict[str, float]:
        """Part -> seconds of this step so far, those under way included."""
        now = time.perf_counter()
        spent = dict(self.taken)
        for part, since in list(self.began.items()):
            spent[part] = spent.get(part, 0.0) + now - since
        return spent


ACTIVITY = Activity()
"""of this process"""
