"""Checks of KL controllers: the contract of :mod:`corerl.registry.kl_controllers`."""

import itertools
import math
from collections.abc import Iterator
from functools import partial

from corerl.registry.base import Selected
from corerl.registry.kl_controllers import KLController
from corerl.testing.results import CheckFailed, Run

COEFFICIENTS = (0.0, 1e-3, 0.1, 10.0)
DIVERGENCES = (-1e3, -0.5, 0.0, 1e-3, 0.1, 10.0, 1e6)
RESPONSES = (1, 64, 4096, 1_000_000)


def checks(selected: Selected[KLController]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    yield "finite_and_not_negative", partial(_finite_and_not_negative, selected)
    yield "pure", partial(_pure, selected)


def _finite_and_not_negative(selected: Selected[KLController]) -> None:
    control = selected.load()
    for coef, kl, responses in itertools.product(COEFFICIENTS, DIVERGENCES, RESPONSES):
        call = f"with coef {coef:g}, kl {kl:g} and {responses} responses"
        following: object = control(coef, kl, responses)
        if not isinstance(following, float | int):
            raise CheckFailed(f"{call} it returns {type(following).__name__}, not a number")
        if not (math.isfinite(following) and following >= 0):
            raise CheckFailed(f"{call} the coefficient becomes {following:g}: it must be finite and at least 0")


def _pure(selected: Selected[KLController]) -> None:
    """The coefficient is the trainer's, so that it is in the checkpoint; a controller that counts steps loses them."""
    control = selected.load()
    calls = list(itertools.product(COEFFICIENTS, DIVERGENCES, RESPONSES))
    first = [control(*call) for call in calls]
    second = [control(*call) for call in reversed(calls)][::-1]
    if first != second:
        raise CheckFailed("the coefficient depends on earlier calls: the trainer holds it and hands it in")
