"""GSPO and GMPO: terms spread over the tokens, so that seq-mean-token-mean gives the paper's objective."""

import math

import pytest
import torch

from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.objective import loss_weights
from corerl_grpo.losses.gmpo import gmpo
from corerl_grpo.losses.gspo import gspo
from corerl_grpo.losses.options import GmpoOptions, GspoOptions

GSPO = GspoOptions(clip_ratio_low=0.1, clip_ratio_high=0.15)
GMPO = GmpoOptions(clip_ratio_low=0.3, clip_ratio_high=0.4)


def batch(scale):
    """Eight responses of different lengths, gaps in their masks, one without a token; one advantage each."""
    generator = torch.Generator().manual_seed(1)
    old = -3 * torch.rand(8, 7, generator=generator, dtype=torch.float64)
    log_probs = (old + scale * torch.randn(8, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    advantages = torch.randn(8, 1, generator=generator, dtype=torch.float64).expand(8, 7).clone()
    mask = torch.rand(8, 7, generator=generator) < 0.7
    mask[3] = False
    return PolicyLossInputs(log_probs, old, advantages, mask)


def gspo_objective(inputs):
    """Equations 5 and 7 on its mean over the sequences; the derivative of the ratio by hand: ratio / n."""
    loss, gradient = 0.0, [[0.0] * 7 for _ in range(8)]
    rows = [i for i in range(8) if inputs.response_mask[i].any()]
    for i in rows:
        tokens = [t for t in range(7) if inputs.response_mask[i, t]]
        mean = sum(float(inputs.log_probs[i, t] - inputs.old_log_probs[i, t]) for t in tokens) / len(tokens)
        ratio, a = math.exp(mean), float(inputs.advantages[i, 0])
        clipped = min(max(ratio, 0.9), 1.15)
        loss -= min(ratio * a, clipped * a) / len(rows)
        if ratio * a <= clipped * a:
            for t in tokens:
                gradient[i][t] = -a * ratio / len(tokens) / len(rows)
    return loss, gradient


def gmpo_objective(inputs):
    """sgn(A) |A| prod_t (min(rho^s, clip(rho, e^-0.3, e^0.4)^s))^(s / n) with s = sgn(A)."""
    loss, gradient = 0.0, [[0.0] * 7 for _ in range(8)]
    rows = [i for i in range(8) if inputs.response_mask[i].any()]
    for i in rows:
        tokens = [t for t in range(7) if inputs.response_mask[i, t]]
        a = float(inputs.advantages[i, 0])
        sign, product, free = math.copysign(1.0, a), 1.0, []
        for t in tokens:
            ratio = math.exp(float(inputs.log_probs[i, t] - inputs.old_log_probs[i, t]))
            plain, clipped = ratio**sign, min(max(ratio, math.exp(-0.3)), math.exp(0.4)) ** sign
            product *= min(plain, clipped) ** sign
            if plain <= clipped:
                free.append(t)
        mean = product ** (1 / len(tokens))
        loss -= a * mean / len(rows)
        for t in free:
            gradient[i][t] = -a * mean / len(tokens) / len(rows)
    return loss, gradient


@pytest.mark.parametrize(("loss", "options", "objective"), [(gspo, GSPO, gspo_objective), (gmpo, GMPO, gmpo_objective)])
@pytest.mark.parametrize("scale", [0.05, 0.6])
def test_seq_mean_token_mean_gives_the_papers_objective_and_gradient(loss, options, objective, scale):
    inputs = batch(scale)
    terms = loss(inputs, options).terms
    (terms * loss_weights(inputs.response_mask, "seq-mean-token-mean")).sum().backward()
    with torch.no_grad():
        expected, gradient = objective(inputs)
    total = (terms * loss_weights(inputs.response_mask, "seq-mean-token-mean")).sum()
    assert total.item() == pytest.approx(expected, rel=1e-12)
    assert torch.allclose(inputs.log_probs.grad, torch.tensor(gradient, dtype=torch.float64), rtol=1e-10, atol=1e-14)


def test_gmpo_honours_the_aggregation():
    old = torch.zeros(2, 3, dtype=torch.float64)
    log_probs = torch.tensor([[0.1, 0.2, 0.3], [-0.1, 0.0, 0.0]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-2.0]], dtype=torch.float64).expand(2, 3)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    terms = gmpo(PolicyLossInputs(log_probs, old, advantages, mask), GMPO).terms
    ratios = [-math.exp(0.2), 2 * math.exp(-0.1)]
    for mode, expected in (
        ("token-mean", (3 * ratios[0] + ratios[1]) / 4),
        ("seq-mean-token-mean", (ratios[0] + ratios[1]) / 2),
        ("seq-mean-token-sum", (3 * ratios[0] + ratios[1]) / 2),
    ):
        assert (terms * loss_weights(mask, mode)).sum().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "clipped"), [(0.5, 1.0, 1), (0.5, -1.0, 0), (-0.5, -1.0, 1), (-0.5, 1.0, 0)]
)
def test_gmpo_clips_on_the_side_of_the_advantage(log_ratio, advantage, clipped):
    log_probs = torch.tensor([[log_ratio, 0.1]], dtype=torch.float64, requires_grad=True)
    advantages = torch.full((1, 2), advantage, dtype=torch.float64)
    output = gmpo(PolicyLossInputs(log_probs, torch.zeros(1, 2), advantages, torch.ones(1, 2).bool()), GMPO)
    output.terms.sum().backward()
    assert float(output.metrics["pg_clipfrac"].total) == clipped
    assert (log_probs.grad[0, 0] == 0) == bool(clipped)
    assert log_probs.grad[0, 1] != 0


@pytest.mark.parametrize(("mean", "advantage", "clipped"), [(0.2, 1.0, 2), (0.2, -1.0, 0), (-0.2, -1.0, 2)])
def test_gspo_clips_whole_sequences(mean, advantage, clipped):
    log_probs = torch.tensor([[mean + 1, mean - 1, 9.0]], dtype=torch.float64, requires_grad=True)
    advantages = torch.full((1, 3), advantage, dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    output = gspo(PolicyLossInputs(log_probs, torch.zeros(1, 3), advantages, mask), GSPO)
    output.terms[mask].sum().backward()
    assert float(output.metrics["pg_clipfrac"].total) == clipped
    assert (log_probs.grad[0, :2] == 0).all() == bool(clipped)


def test_gspo_holds_the_exponent_at_ten():
    log_probs = torch.tensor([[15.0]], dtype=torch.float64)
    inputs = PolicyLossInputs(log_probs, torch.zeros(1, 1), -torch.ones(1, 1).double(), torch.ones(1, 1).bool())
    assert gspo(inputs, GSPO).terms.item() == pytest.approx(math.exp(10), rel=1e-12)
