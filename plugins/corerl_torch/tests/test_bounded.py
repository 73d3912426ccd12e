"""Bounds on code of others in a thread of this process."""

import os
import sys
import threading
import time

import pytest

from corerl_torch.bounded import BoundError, bounded


def endless() -> None:
    while True:
        pass


@pytest.mark.parametrize("in_thread", [False, True])
def test_code_without_end_is_interrupted_in_its_own_thread(in_thread: bool) -> None:
    raised: list[str] = []

    def work() -> None:
        try:
            with bounded(0.2, 2**40):
                endless()
        except BoundError as error:
            raised.append(str(error))

    if in_thread:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    else:
        work()
    assert raised == ["it had not ended after 0.2 s of computing"] * (2 if in_thread else 1)


def test_a_wait_is_no_computing() -> None:
    with bounded(0.2, 2**40):
        time.sleep(0.6)


def test_what_follows_is_not_interrupted() -> None:
    for _ in range(20):
        try:
            with bounded(0.0, 2**40):
                end = time.monotonic() + 0.1
                while time.monotonic() < end:
                    pass
        except BoundError:
            pass
        sum(range(100_000))


def test_a_fork_has_bounds_of_its_own() -> None:
    with bounded(10.0, 2**40):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with bounded(0.2, 2**40):
                    endless()
            except BoundError:
                code = 7
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_bound_that_was_kept_leaves_other_threads_as_they_were() -> None:
    """An interrupt that is taken back would make CPython 3.11 look for it in each line, a profiled thread for ever."""
    with bounded(60.0, 2**40):
        pass
    seen: list[str] = []

    def called() -> None:
        pass

    def work() -> None:
        sys.setprofile(lambda frame, event, argument: seen.append(event))
        called()
        sys.setprofile(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and "call" in seen
