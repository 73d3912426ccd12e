import math

import pytest
import torch

from corerl.registry.policy_losses import PolicyLossInputs
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.vanilla import vanilla

OPTIONS = VanillaOptions(clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0)


def term(ratio, advantage):
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    output = vanilla(
        PolicyLossInputs(
            log_probs,
            torch.zeros(1, 1, dtype=torch.float64),
            torch.tensor([[advantage]]).double(),
            torch.ones(1, 1).bool(),
        ),
        OPTIONS,
    )
    output.terms.sum().backward()
    return output, output.terms.item(), log_probs.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient"),
    [
        (1.1, 2.0, -2.2, -2.2),  # inside: -A rho
        (1.5, 2.0, -2.56, 0.0),  # above, A > 0: clipped at 1.28
        (0.5, 2.0, -1.0, -1.0),  # below, A > 0: the unclipped term is larger
        (0.5, -2.0, 1.6, 0.0),  # below, A < 0: clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),  # above, A < 0: unclipped
        (5.0, -2.0, 6.0, 0.0),  # dual clip: -A c
    ],
)
def test_terms_and_gradients_by_hand(ratio, advantage, expected, gradient):
    _, value, slope = term(ratio, advantage)
    assert value == pytest.approx(expected, rel=1e-12)
    assert slope == pytest.approx(gradient, rel=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped", "lower"),
    [(1.5, 2.0, 1, 0), (1.1, 2.0, 0, 0), (0.5, -2.0, 1, 0), (5.0, -2.0, 0, 1)],
)
def test_clip_fractions(ratio, advantage, clipped, lower):
    metrics = term(ratio, advantage)[0].metrics
    assert (float(metrics["pg_clipfrac"].total), float(metrics["pg_clipfrac_lower"].total)) == (clipped, lower)


def test_extreme_log_ratios_stay_finite():
    log_probs = torch.tensor([[0.0, -500.0]], requires_grad=True)
    old = torch.tensor([[-500.0, 0.0]])
    output = vanilla(PolicyLossInputs(log_probs, old, torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2).bool()), OPTIONS)
    output.terms.sum().backward()
    assert torch.isfinite(output.terms).all() and torch.isfinite(log_probs.grad).all()
