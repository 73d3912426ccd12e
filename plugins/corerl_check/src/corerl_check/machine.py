"""The devices of a run: those of this machine."""

import os

from corerl_check.contract import Machine
from corerl_check.main_memory import main_memory

GIB = 2**30


def count_gpus() -> int:
    """The number of GPUs that torch finds, 0 without torch; starts nothing on the GPUs."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def count_processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def detect() -> Machine:
    """This machine, by torch."""
    count = count_gpus()
    if not count:
        return Machine(0, processors=count_processors(), main=main_memory())
    import torch

    memory = min(torch.cuda.get_device_properties(index).total_memory for index in range(count))
    name, processors = torch.cuda.get_device_name(), count_processors()
    return Machine(count, float(memory), name, processors=processors, main=main_memory())
