import threading
import time

import pytest

from corerl_testing.deadline import Lane, patience, scaled, within
from corerl_testing.results import CheckFailed


def test_results_and_errors_come_back() -> None:
    assert within(5, lambda: 3, "it") == 3
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0, "it")


def test_an_own_timeout_is_not_taken_for_the_deadline() -> None:
    def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        within(5, late, "it")


def test_calls_of_a_lane_share_a_thread_until_one_hangs() -> None:
    lane = Lane()
    first = lane.within(5, threading.get_ident, "it")
    assert lane.within(5, threading.get_ident, "it") == first
    with pytest.raises(CheckFailed, match=r"it had not ended after 0\.05 s"):
        lane.within(0.05, threading.Event().wait, "it")
    assert lane.within(5, threading.get_ident, "it") != first
    lane.end()


def test_patience_shortens_deadlines_and_ends() -> None:
    begun = time.monotonic()
    with patience(0.001), pytest.raises(CheckFailed, match=r"after 0\.1 s"):
        within(100, threading.Event().wait, "it")
    assert time.monotonic() - begun < 20
    assert scaled(100) == 100


def test_a_lane_keeps_nothing_of_its_last_call() -> None:
    import gc
    import weakref

    class Big:
        pass

    lane, big = Lane(), Big()
    gone = weakref.ref(big)
    lane.within(5, lambda big=big: None, "it")
    del big
    lane.within(5, lambda: None, "it")
    gc.collect()
    assert gone() is None
    lane.end()
