"""A tracker in a thread of its own, which neither holds up nor ends the run."""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from corerl.contracts.trackers import ResumableTracker, Tracker
from corerl.terminal.notices import say

MOST_WAITING = 1000
"""waiting calls of a tracker, at most"""

R = TypeVar("R")
Call = Callable[[Tracker], None]


class TrackerThread:
    """Opens a tracker, calls it, closes it. The first error is printed; the run goes on.

    Args:
        timeout: seconds for one call. The thread of a call that hangs stays behind.
        run_id: of the resumed run; kept if the tracker cannot be opened.
    """

    def __init__(self, name: str, open_tracker: Callable[[], Tracker], timeout: float, run_id: str = "") -> None:
        self.name = name
        self.run_id = run_id
        self._open = open_tracker
        self._timeout = timeout
        self._calls: queue.Queue[Call | None] = queue.Queue(MOST_WAITING)
        self._since: float | None = None
        """when the call under way began"""
        self._given_up = False
        self._is_reported = False
        self._thread = threading.Thread(target=self._run, name=f"corerl-{name}", daemon=True)
        self._thread.start()

    def call(self, what: Call | None) -> None:
        """Queue a call, without a wait. None: close the tracker after all calls; see :meth:`join`."""
        since = self._since
        if since is not None and time.monotonic() - since > self._timeout:
            self._give_up(f"has not answered for {self._timeout:g} s (tracking.timeout)")
        if self._given_up:
            return
        try:
            self._calls.put_nowait(what)
        except queue.Full:
            self._give_up(f"is {MOST_WAITING} calls behind")

    def join(self, deadline: float) -> None:
        """Wait until the tracker is closed, or until ``deadline`` by the monotonic clock."""
        if not self._given_up:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                self._give_up(f"was not done {self._timeout:g} s after the run (tracking.timeout)")

    def _run(self) -> None:
        tracker = self._guard(self._open)
        if tracker is None:
            self._given_up = True
            return
        if isinstance(tracker, ResumableTracker):
            self.run_id = tracker.run_id
        while (call := self._calls.get()) is not None:
            self._guard(partial(call, tracker))
        self._guard(tracker.close)

    def _guard(self, call: Callable[[], R]) -> R | None:
        self._since = time.monotonic()
        try:
            return call()
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            self._report(f"{type(error).__name__}: {reason}" if reason else type(error).__name__)
            return None
        finally:
            self._since = None

    def _give_up(self, problem: str) -> None:
        self._given_up = True
        self._calls = queue.Queue()
        self._calls.put(None)
        self._report(f"{problem} and gets no more metrics")

    def _report(self, problem: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            say(f"tracker '{self.name}': {problem}; the run goes on, and all metrics are in metrics.jsonl")
