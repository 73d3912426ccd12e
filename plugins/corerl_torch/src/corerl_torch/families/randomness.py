"""Whether code draws random numbers, from any generator that a model may use."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from corerl_torch.loading import own_random_state


@contextmanager
def watched(device: str) -> Iterator[Callable[[], bool]]:
    """Within, random numbers begin with a seed; gives a function: whether one was drawn. Afterwards all is as before.

    The states of the generators show layers that are left out rarely, which two equal passes do not.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with own_random_state(device, 0):
            before = _states(device)
            yield lambda: _states(device) != before
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _states(device: str) -> list[Any]:
    of_numpy: Any = np.random.get_state()
    used = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.device(device).type == "cuda" else [])]
    return [random.getstate(), *map(repr, of_numpy[2:]), of_numpy[1].tobytes(), *(bytes(each.numpy()) for each in used)]
