"""Where checks run an implementation that has a model."""

import os
from collections.abc import Callable
from typing import TypeVar

from corerl.errors import RequestError
from corerl_testing.results import CheckSkipped

VARIABLE = "CORERL_TEST_DEVICE"

T = TypeVar("T")


def build(on_device: Callable[[str], T]) -> tuple[T, str]:
    """What ``on_device(device)`` makes, and the device.

    It is the one that the variable ``CORERL_TEST_DEVICE`` names; without that the CPU, or a CUDA device where the
    implementation refuses the CPU (RequestError).

    Raises:
        CheckSkipped: it refuses the CPU and there is no CUDA device.
    """
    import torch

    named = os.environ.get(VARIABLE)
    if named:
        return on_device(named), named
    try:
        return on_device("cpu"), "cpu"
    except RequestError as error:
        if not torch.cuda.is_available():
            raise CheckSkipped(f"it does not run here: {error}") from error
    return on_device("cuda"), "cuda"
