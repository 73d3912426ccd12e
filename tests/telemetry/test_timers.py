import pytest
import torch

from corerl.errors import RunError
from corerl.telemetry.timers import Timers


@pytest.fixture
def sleep(monkeypatch):
    """``sleep(seconds)`` on a clock of the test's own."""
    now = [0.0]
    monkeypatch.setattr("corerl.telemetry.timers.time.perf_counter", lambda: now[0])

    def pass_by(seconds):
        now[0] += seconds

    return pass_by


def test_seconds_add_up_by_part(sleep):
    timers = Timers()
    for _ in range(2):
        with timers("gen"):
            sleep(0.5)
    assert timers.seconds == {"gen": 1.0}


def test_out_of_memory_names_the_part_and_the_settings_that_help():
    expected = r"out of memory in 'update_actor'.*ppo_max_token_len_per_gpu"
    with pytest.raises(RunError, match=expected), Timers()("update_actor"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def test_a_part_within_another_counts_once_and_the_step_has_both(sleep):
    timers = Timers()
    with timers("step"), timers("update_actor"):
        sleep(0.25)
        for _ in range(2):
            with timers("teacher"):
                sleep(2.0)
    assert timers.seconds == {"step": 4.25, "update_actor": 0.25, "teacher": 4.0}
