"""The device on which checks run an implementation with a model."""

import os
from collections.abc import Callable
from typing import TypeVar

from corerl.errors import RequestError
from corerl_testing.results import CheckSkipped

VARIABLE = "CORERL_TEST_DEVICE"

T = TypeVar("T")


def build(on_device: Callable[[str], T]) -> tuple[T, str]:
    """The result of ``on_device(device)``, and the device.

    The device is that of the variable ``CORERL_TEST_DEVICE``; without it the CPU, or a CUDA device if the
    implementation refuses the CPU (RequestError).

    Raises:
        CheckSkipped: the implementation refuses the CPU, and there is no CUDA device.
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
