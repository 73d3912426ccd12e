import math

import pytest
import torch

from corerl.contracts.policy_losses import PolicyLossInputs
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


def test_the_gradient_is_that_of_the_textbook_formula():
    generator = torch.Generator().manual_seed(0)
    log_probs, old, advantages, weights = torch.randn(4, 20, 30, generator=generator, dtype=torch.float64)
    log_probs = log_probs.requires_grad_()
    ratio = (log_probs - old).exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(0.8, 1.28)
    surrogate = torch.maximum(plain, clipped)
    terms = torch.where(advantages < 0, torch.minimum(surrogate, -3 * advantages), surrogate)
    (expected,) = torch.autograd.grad((terms * weights).sum(), log_probs)
    output = vanilla(PolicyLossInputs(log_probs, old, advantages, torch.ones(20, 30).bool()), OPTIONS)
    (gradient,) = torch.autograd.grad((output.terms * weights).sum(), log_probs)
    assert torch.allclose(output.terms, terms, rtol=1e-12)
    assert torch.allclose(gradient, expected, rtol=1e-12)


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
