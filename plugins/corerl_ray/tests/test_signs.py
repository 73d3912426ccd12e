"""Answers to the signal that asks a worker's process for a sign of life, in this process."""

import ctypes
import errno
import faulthandler
import signal
import threading
from pathlib import Path

import pytest

from corerl_ray.signs import SIGNAL, answer_signals, ask, place_in

pytestmark = pytest.mark.skipif(SIGNAL is None, reason="this system has no signals of its own for programs")


@pytest.fixture
def asked(tmp_path):
    """This process, as one that answers."""
    yield answer_signals(tmp_path)
    faulthandler.unregister(SIGNAL)
    signal.signal(SIGNAL, signal.SIG_DFL)


def answer(asked):
    ask([asked], [True])
    [said] = ask([asked], [False])
    return said.stacks


def test_an_answer_names_the_place_of_the_main_thread(asked):
    assert place_in(answer(asked)).startswith("in ask (")


def test_an_answer_reads_no_frame_of_a_thread_that_runs_on(asked):
    ended = threading.Event()
    other = threading.Thread(target=ended.wait, name="other")
    other.start()
    try:
        stacks = answer(asked)
    finally:
        ended.set()
        other.join()
    assert "test_signs.py" in stacks and "threading.py" not in stacks


def test_an_answer_leaves_errno_as_it_was(asked):
    location = ctypes.CDLL(None)["__errno_location"]
    location.restype = ctypes.POINTER(ctypes.c_int)
    number = location()
    number[0] = errno.ENOENT
    signal.raise_signal(SIGNAL)
    after = number[0]
    assert Path(asked.stacks).read_text() and after == errno.ENOENT
