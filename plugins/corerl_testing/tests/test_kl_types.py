"""What the checks of KL types report without failing; wrong ones are in planted/kl_types.py."""

from typing import Any

import pytest
from planted.kl_types import full, k1, k2, k3, k3_with_the_gradient_of_k2
from torch import Tensor


def reported(outcomes: Any, kl: Any, **facts: Any) -> dict[str, str]:
    """check -> its reason, of those that are not ok; that of claims, which there are none of, apart."""
    results = outcomes("kl_types", kl, **facts)
    assert "it declares no bias" in results.pop("claims").reason
    assert "failed" not in {result.status for result in results.values()}
    return {name: result.reason for name, result in results.items() if result.status == "skipped"}


@pytest.mark.parametrize(("kl", "facts"), [(k3, {}), (full, {"needs": {"logits"}})])
def test_nothing_is_reported_of_an_unbiased_type_with_its_own_gradient(
    outcomes: Any, kl: Any, facts: dict[str, Any]
) -> None:
    assert reported(outcomes, kl, **facts) == {}


def test_a_type_that_leads_nowhere_as_a_loss_is_reported(outcomes: Any) -> None:
    assert list(reported(outcomes, k1)) == ["pulls_towards_the_reference"]
    assert "its mean gradient is 0" in reported(outcomes, k1)["pulls_towards_the_reference"]


def test_bias_is_reported_with_its_size(outcomes: Any) -> None:
    assert "its mean is 0.803 to 1.23 times KL" in reported(outcomes, k2)["mean_is_the_divergence"]


def test_a_straight_through_gradient_is_reported_with_its_size(outcomes: Any) -> None:
    reasons = reported(outcomes, k3_with_the_gradient_of_k2)
    assert list(reasons) == ["gradient_matches_differences"]
    assert "stops gradients (detach), and differs from that of the value by 0.619" in reasons.popitem()[1]


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return (log_probs - ref_log_probs).abs()


def test_a_kink_is_reported_with_its_size(outcomes: Any) -> None:
    assert (
        "noise of 1e-07 in reference log-probs changes the first update by 0.00083"
        in (reported(outcomes, absolute)["unchanged_by_rounding"])
    )
