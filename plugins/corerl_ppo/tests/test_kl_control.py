import pytest

from corerl_ppo.kl_control import adaptive, fixed
from corerl_ppo.options import AdaptiveOptions


@pytest.mark.parametrize(
    ("kl", "responses", "expected"),
    [
        (0.1, 1024, 0.02),  # on target
        (0.11, 1000, 0.02 * 1.01),  # error 0.1 · 1000/10000
        (0.09, 1000, 0.02 * 0.99),
        (5.0, 1000, 0.02 * 1.02),  # the error is at most 0.2
        (0.0, 1000, 0.02 * 0.98),  # and at least -0.2
        (-3.0, 1000, 0.02 * 0.98),  # an estimator such as k1 can be negative
        (5.0, 60000, 0.02 * 2.2),
        (0.0, 50000, 0.0),
        (0.0, 60000, 0.0),  # 1 - 0.2 · 6 would be negative
    ],
)
def test_adaptive_numbers_by_hand(kl: float, responses: int, expected: float) -> None:
    assert adaptive(0.02, kl, responses, AdaptiveOptions()) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_target_and_horizon_are_options() -> None:
    assert adaptive(1.0, 6.6, 512, AdaptiveOptions(target_kl=6.0, horizon=5120)) == pytest.approx(1.01, rel=1e-12)


def test_the_papers_gain_of_a_tenth() -> None:
    assert adaptive(1.0, 1e9, 1000, AdaptiveOptions(horizon=10000)) == pytest.approx(1 + 0.1 * 0.2, rel=1e-12)


@pytest.mark.parametrize("kl", [-1.0, 0.0, 100.0])
def test_fixed_is_fixed(kl: float) -> None:
    assert fixed(0.3, kl, 4096) == 0.3
