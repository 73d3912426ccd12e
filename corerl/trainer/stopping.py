"""SIGTERM and Ctrl-C: the first asks the run to stop, the second ends it at once."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from corerl.errors import Stopped
from corerl.terminal.notices import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)

SAME = 0.5
"""seconds in which a signal is the one before it once more: ``timeout`` sends it to a process, and to its group"""


class Stopping:
    """What was asked, and whether the step may be abandoned for it: until the step changes what a checkpoint holds.

    Attributes:
        saves: whether the run has begun, and saves a checkpoint before it ends.
    """

    def __init__(self) -> None:
        self.saves = False
        self._asked: int | None = None
        self._asked_at = 0.0
        self._abandonable = False

    @contextmanager
    def listen(self) -> Iterator[Self]:
        """Within, signals of this process are heard; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        report = sys.unraisablehook
        sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Stopped) else report(lost)  # see check()
        before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        try:
            yield self
        finally:
            sys.unraisablehook = report
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """Within, a signal raises Stopped at once; so does one that came before.

        What a library makes of that exception (Ray a SystemError or a KeyboardInterrupt) is Stopped again.
        """
        self._abandonable = True
        try:
            self.check()
            yield
            self.check()  # whatever ran may have taken it for its own
        except BaseException:
            self.check()
            raise
        finally:
            self._abandonable = False

    def check(self) -> None:
        """Raise Stopped if a signal has come."""
        if self._asked is not None:
            raise Stopped(self._asked)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._asked is not None:
            if time.monotonic() - self._asked_at < SAME:
                return
            say(f"{name} again: ended at once")
            os._exit(128 + number)
        self._asked, self._asked_at = number, time.monotonic()
        say(f"{name}: the run {'saves a checkpoint and ' if self.saves else ''}ends; a second signal ends it at once")
        if self._abandonable:
            raise Stopped(number)
