"""The GPUs of a run: those of this machine, or planned ones."""

import os

from corerl_check.contract import Machine

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
        return Machine(0, processors=count_processors())
    import torch

    memory = min(torch.cuda.get_device_properties(index).total_memory for index in range(count))
    return Machine(count, float(memory), torch.cuda.get_device_name(), processors=count_processors())
