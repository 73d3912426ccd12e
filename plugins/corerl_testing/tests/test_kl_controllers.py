"""What the checks of KL controllers do beside catching the planted faults."""

from typing import Any


def fixed(coef: float, kl: float, responses: int) -> float:
    return coef


def test_a_controller_that_never_changes_the_coefficient_passes(failures: Any) -> None:
    assert failures("kl_controllers", fixed) == {}
