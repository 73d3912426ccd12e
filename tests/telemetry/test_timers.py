import time

import pytest
import torch

from corerl.errors import RunError
from corerl.telemetry.timers import Timers


def test_seconds_add_up_by_part():
    timers = Timers()
    for _ in range(2):
        with timers("gen"):
            time.sleep(0.01)
    assert 0.02 <= timers.seconds["gen"] < 0.5


def test_out_of_memory_names_the_part_and_the_settings_that_help():
    expected = r"out of memory in 'update_actor'.*ppo_max_token_len_per_gpu"
    with pytest.raises(RunError, match=expected), Timers()("update_actor"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def test_a_part_within_another_counts_once_and_the_step_has_both():
    timers = Timers()
    with timers("step"), timers("update_actor"):
        time.sleep(0.01)
        for _ in range(2):
            with timers("teacher"):
                time.sleep(0.05)
    assert timers.seconds["teacher"] >= 0.1 and 0.01 <= timers.seconds["update_actor"] < 0.09
    parts = timers.seconds["teacher"] + timers.seconds["update_actor"]
    assert timers.seconds["step"] == pytest.approx(parts, abs=0.01)
