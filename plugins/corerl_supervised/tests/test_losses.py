"""Preference losses against their papers' formulas in plain Python floats, and their derivatives by differences."""

import math

import pytest
import torch

from corerl.plugins import load_plugins
from corerl_supervised.contract import PreferenceInputs


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dpo(w: float, x: float, m: float, beta: float = 0.1, eps: float = 0.0) -> float:
    """Rafailov et al. 2023, equation 7; Mitchell 2023, equation 3; Amini et al. 2024, equation 8."""
    z = beta * (w - x) - m
    return -(1 - eps) * math.log(sigma(z)) - eps * math.log(sigma(-z))


FORMULAS = {
    "sigmoid": (dpo, {}),
    "sigmoid, smoothed": (lambda w, x, m: dpo(w, x, m, 0.5, 0.2), {"beta": 0.5, "label_smoothing": 0.2}),
    "bradley_terry": (lambda w, x, m: -math.log(sigma(w - x - m)), {}),
    "hinge": (lambda w, x, m: max(0.0, 1 + m - 0.2 * (w - x)), {"beta": 0.2}),
    "ipo": (lambda w, x, m: (w - x - m - 1 / (2 * 0.25)) ** 2, {"tau": 0.25}),
}
POINTS = [(-3.0, -5.0, 0.0), (2.0, 7.0, 0.0), (0.0, 0.0, 0.0), (12.0, -9.0, 0.5), (1.0, 0.5, 2.0)]


@pytest.mark.parametrize("case", FORMULAS)
def test_a_loss_and_its_gradient_are_those_of_the_paper(case: str) -> None:
    formula, options = FORMULAS[case]
    name = case.partition(",")[0]
    loss = load_plugins((), ()).registries.preference_losses.select({"name": name, **options}, "loss").load()
    chosen, rejected, margins = torch.tensor(POINTS, dtype=torch.float64).T
    inputs = chosen.clone().requires_grad_(), rejected.clone().requires_grad_()
    terms = loss(PreferenceInputs(*inputs, margins))
    assert terms.tolist() == pytest.approx([formula(*point) for point in POINTS], abs=1e-12)
    terms.sum().backward()
    h = 1e-6
    for each, (dw, dx) in zip(inputs, ((h, 0.0), (0.0, h)), strict=True):
        slopes = [(formula(w + dw, x + dx, m) - formula(w - dw, x - dx, m)) / (2 * h) for w, x, m in POINTS]
        assert each.grad is not None
        assert each.grad.tolist() == pytest.approx(slopes, abs=1e-7)


def test_extreme_differences_stay_finite() -> None:
    losses = load_plugins((), ()).registries.preference_losses
    chosen = torch.tensor([1e6, -1e6], dtype=torch.float64, requires_grad=True)
    for name in ("sigmoid", "bradley_terry", "hinge", "ipo"):
        terms = losses.select(name, "loss").load()(PreferenceInputs(chosen, torch.zeros(2).double(), torch.zeros(2)))
        terms.sum().backward()
        assert torch.isfinite(terms).all() and torch.isfinite(chosen.grad).all()
