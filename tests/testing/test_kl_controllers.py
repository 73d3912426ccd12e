"""Wrong KL controllers, and the checks that catch them."""

from typing import Any

import pytest


def fixed(coef: float, kl: float, responses: int) -> float:
    return coef


def adaptive(coef: float, kl: float, responses: int) -> float:
    return max(0.0, coef * (1 + min(max(kl / 0.1 - 1, -0.2), 0.2) * responses / 10_000))


@pytest.mark.parametrize("controller", [fixed, adaptive])
def test_right_controllers_pass(failures: Any, controller: Any) -> None:
    assert failures("kl_controllers", controller) == {}


def becomes_negative(coef: float, kl: float, responses: int) -> float:
    return coef * (1 + min(max(kl / 0.1 - 1, -0.2), 0.2) * responses / 10_000)


def overflows(coef: float, kl: float, responses: int) -> float:
    return coef * (1e300 * max(kl, 1.0)) * 1e300


def returns_nothing(coef: float, kl: float, responses: int) -> None: ...


class CountsSteps:
    """Its count is in no checkpoint."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, coef: float, kl: float, responses: int) -> float:
        self.steps += 1
        return coef / self.steps


@pytest.mark.parametrize(
    ("controller", "check", "message"),
    [
        (
            becomes_negative,
            "finite_and_not_negative",
            "with coef 0.001, kl -1000 and 1000000 responses the coefficient becomes -0.019",
        ),
        (overflows, "finite_and_not_negative", "the coefficient becomes inf: it must be finite and at least 0"),
        (returns_nothing, "finite_and_not_negative", "it returns NoneType, not a number"),
        (CountsSteps(), "pure", "the coefficient depends on earlier calls"),
    ],
)
def test_a_wrong_controller_is_caught(failures: Any, controller: Any, check: str, message: str) -> None:
    assert message in failures("kl_controllers", controller, only=check)[check]
