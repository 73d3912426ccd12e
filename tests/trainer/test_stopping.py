import signal
import subprocess
import sys

import pytest

from corerl.errors import Stopped
from corerl.trainer.stopping import Stopping


def test_a_signal_abandons_what_may_be_abandoned_and_waits_for_the_rest():
    stopping = Stopping()
    before = signal.getsignal(signal.SIGTERM)
    with stopping.listen():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped) as stopped:
            stopping.check()
        assert stopped.value.signal == signal.SIGTERM
        with pytest.raises(Stopped), stopping.abandonable():
            pytest.fail("what comes after a signal does not begin")
    assert signal.getsignal(signal.SIGTERM) is before
    stopping = Stopping()
    with pytest.raises(Stopped), stopping.listen(), stopping.abandonable():
        signal.raise_signal(signal.SIGINT)


def test_a_stop_that_a_library_made_an_error_of_its_own_is_one_again():
    stopping = Stopping()
    with pytest.raises(Stopped), stopping.listen(), stopping.abandonable():
        try:
            signal.raise_signal(signal.SIGTERM)
        except Stopped:
            raise SystemError("returned a result with an exception set") from None
    with pytest.raises(SystemError), Stopping().abandonable():
        raise SystemError("of another kind")


SCRIPT = """
import time
from corerl.errors import Stopped
from corerl.trainer.stopping import SAME, Stopping
def wait():  # a signal that comes just before a sleep is heard after it
    for _ in range(600):
        time.sleep(0.1)
stopping = Stopping()
with stopping.listen():
    try:
        with stopping.abandonable():
            print("ready", flush=True)
            wait()
    except Stopped:
        print("saving", flush=True)
        time.sleep(SAME)
        print("still saving", flush=True)
        wait()
"""


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_at_once_unless_it_is_the_first_ones_double(number, code):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "saving\n"
        process.send_signal(number)
        assert process.stdout.readline() == "still saving\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    assert f"{signal.Signals(number).name} again: ended at once" in errors
