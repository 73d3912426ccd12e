"""Checks of KL controllers: the contract of :mod:`corerl.contracts.kl_controllers`."""

import itertools
import math
from collections.abc import Iterator
from functools import partial

from corerl.contracts.kl_controllers import KLController
from corerl.registry import Selected
from corerl_testing.deadline import noted
from corerl_testing.fresh import same_in_a_fresh_process
from corerl_testing.results import CheckFailed, Run

COEFFICIENTS = (0.0, 1e-3, 0.1, 10.0)
DIVERGENCES = (-1e3, -0.5, 0.0, 1e-3, 0.1, 10.0, 1e6)
RESPONSES = (1, 64, 4096, 1_000_000)

Call = tuple[float, float, int]
CALLS: tuple[Call, ...] = tuple(itertools.product(COEFFICIENTS, DIVERGENCES, RESPONSES))

SECONDS = 10.0
"""seconds for one call"""


def checks(selected: Selected[KLController]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    yield "finite_and_not_negative", partial(_finite_and_not_negative, selected)
    yield "pure", partial(_pure, selected)
    yield "more_divergence_never_lowers_it", partial(_rises_with_divergence, selected)
    yield "same_in_a_fresh_process", partial(same_in_a_fresh_process, outcomes, selected)


def _finite_and_not_negative(selected: Selected[KLController]) -> None:
    control = selected.load()
    for call in CALLS:
        following: object = _call(control, call)
        if type(following) not in (float, int):
            raise CheckFailed(f"{_shown(call)} it returns {type(following).__name__}, not a float")
        if not (isinstance(following, float | int) and math.isfinite(following) and following >= 0):
            raise CheckFailed(f"{_shown(call)} the coefficient becomes {following:g}: it must be finite and at least 0")


def _call(control: KLController, call: Call) -> float:
    with noted(f"the controller {_shown(call)}", SECONDS):
        return control(*call)


def _shown(call: Call) -> str:
    coef, kl, responses = call
    return f"with coef {coef:g}, kl {kl:g} and {responses} responses"


def _pure(selected: Selected[KLController]) -> None:
    """The trainer holds the coefficient, so that it is in the checkpoint; a controller's own count of steps is not."""
    control = selected.load()
    first = [_call(control, call) for call in CALLS]
    second = [_call(control, call) for call in reversed(CALLS)][::-1]
    if first != second:
        raise CheckFailed("the coefficient depends on earlier calls: the trainer holds it and hands it in")


def _rises_with_divergence(selected: Selected[KLController]) -> None:
    """The coefficient must not fall as the KL rises: otherwise the policy could move further away."""
    control = selected.load()
    for coef, responses in itertools.product(COEFFICIENTS, RESPONSES):
        following = [_call(control, (coef, kl, responses)) for kl in DIVERGENCES]
        for (low, before), (high, after) in itertools.pairwise(zip(DIVERGENCES, following, strict=True)):
            if after < before:
                raise CheckFailed(
                    f"with coef {coef:g} and {responses} responses the coefficient becomes {before:g} at kl {low:g} "
                    f"and {after:g} at kl {high:g}: more divergence must not lower the penalty"
                )


def outcomes(selected: Selected[KLController], backwards: bool = False) -> list[tuple[str, str]]:
    """Each call with its result."""
    control = selected.load()
    found = [(_shown(call), repr(_call(control, call))) for call in (reversed(CALLS) if backwards else CALLS)]
    return found[::-1] if backwards else found
