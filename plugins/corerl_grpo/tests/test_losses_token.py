"""The token-level losses against references in plain Python: a term and its derivative by log pi, token by token."""

import math
import random

import pytest
import torch

from corerl.contracts.policy_losses import PolicyLossInputs
from corerl_grpo.losses import options
from corerl_grpo.losses.cispo import cispo
from corerl_grpo.losses.clip_cov import clip_cov
from corerl_grpo.losses.dppo_kl import binary_kl, dppo_kl
from corerl_grpo.losses.dppo_tv import dppo_tv
from corerl_grpo.losses.dro import dro
from corerl_grpo.losses.gpg import gpg
from corerl_grpo.losses.kl_cov import kl_cov
from corerl_grpo.losses.opd import opd
from corerl_grpo.losses.reinforce import reinforce
from corerl_grpo.losses.sapo import sapo

CISPO = options.CispoOptions(clip_ratio_low=0.2, clip_ratio_high=0.28)


def run(loss, options, log_prob, old, advantage, **more):
    """Output, term and gradient of one token."""
    log_probs = torch.tensor([[log_prob]], dtype=torch.float64, requires_grad=True)
    tensors = [torch.tensor([[number]], dtype=torch.float64) for number in (old, advantage)]
    more = {
        name: torch.tensor([[value]], dtype=None if value is True else torch.float64) for name, value in more.items()
    }
    if loss in (clip_cov, kl_cov):
        more.setdefault("selected", torch.tensor([[False]]))
    inputs = PolicyLossInputs(log_probs, *tensors, torch.tensor([[True]]), **more)
    output = loss(inputs, options) if options else loss(inputs)
    output.terms.sum().backward()
    return output, output.terms.item(), log_probs.grad.item()


def cispo_reference(x, old, a):
    weight = min(max(math.exp(x - old), 0.8), 1.28)
    return -weight * a * x, -weight * a


def sapo_reference(x, old, a):
    ratio, tau = math.exp(x - old), 1.0 if a > 0 else 1.05
    p = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return -a * p * 4 / tau, -a * 4 * p * (1 - p) * ratio


def gpg_reference(x, old, a):
    return -a * x, -a


def dppo_reference(distance, bound):
    def reference(x, old, a):
        away = x > old if a > 0 else x < old
        weight = 0.0 if away and distance(math.exp(old), math.exp(x)) > bound else min(math.exp(x - old), 20.0)
        return -a * weight * x, -a * weight

    return reference


def binary_divergence(p, q):
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def dro_reference(x, old, a):
    return -(a * x - 0.5 * 0.05 * (x - old) ** 2), -a + 0.05 * (x - old)


def reinforce_reference(x, old, a):
    weight = min(math.exp(x - old), 2.0)
    return -a * weight * x, -a * weight


def ratio_reference(x, old, a):
    return -a * math.exp(x - old), -a * math.exp(x - old)


def clip_reference(x, old, a):
    ratio = math.exp(x - old)
    plain, clipped = -a * ratio, -a * min(max(ratio, 0.8), 1.2)
    return max(plain, clipped), 0.0 if clipped > plain else plain


TOKEN_LOSSES = [
    (cispo, CISPO, cispo_reference),
    (sapo, options.SapoOptions(), sapo_reference),
    (gpg, None, gpg_reference),
    (dppo_tv, options.DppoTvOptions(), dppo_reference(lambda p, q: abs(p - q), 0.15)),
    (dppo_kl, options.DppoKlOptions(), dppo_reference(binary_divergence, 0.05)),
    (dro, options.DroOptions(), dro_reference),
    (reinforce, options.ReinforceOptions(), reinforce_reference),
    (reinforce, options.ReinforceOptions(use_importance_weights=False), gpg_reference),
    (kl_cov, options.KlCovOptions(), ratio_reference),
    (clip_cov, options.ClipCovOptions(), clip_reference),
]


@pytest.mark.parametrize(("loss", "options", "reference"), TOKEN_LOSSES)
def test_terms_and_gradients_are_the_papers(loss, options, reference):
    generator = random.Random(0)
    for _ in range(200):
        old = -generator.uniform(0.05, 4)
        log_prob = min(-1e-3, old + generator.gauss(0, 0.7))
        advantage = generator.gauss(0, 1)
        _, value, gradient = run(loss, options, log_prob, old, advantage)
        expected, slope = reference(log_prob, old, advantage)
        assert (value, gradient) == (pytest.approx(expected, rel=1e-10), pytest.approx(slope, rel=1e-10))


@pytest.mark.parametrize(
    ("loss", "options", "probability", "old", "advantage", "gradient", "clipped"),
    [
        (cispo, CISPO, 0.75, 0.5, 2.0, -2.56, 1),  # rho 1.5, held at 1.28, keeps its gradient
        (cispo, CISPO, 0.25, 0.5, -2.0, 1.6, 1),  # rho 0.5, held at 0.8
        (cispo, CISPO, 0.55, 0.5, 2.0, -2.2, 0),
        (dppo_tv, options.DppoTvOptions(), 0.7, 0.5, 1.0, 0.0, 1),  # risen by 0.2 > 0.15
        (dppo_tv, options.DppoTvOptions(), 0.7, 0.5, -1.0, 1.4, 0),  # on its way back
        (dppo_tv, options.DppoTvOptions(), 0.3, 0.5, -1.0, 0.0, 1),  # fallen by 0.2
        (dppo_tv, options.DppoTvOptions(), 0.3, 0.5, 1.0, -0.6, 0),
        (dppo_tv, options.DppoTvOptions(), 0.1, 0.001, 1.0, -20.0, 0),  # rho 100 inside the bound: capped
        (dppo_kl, options.DppoKlOptions(), 0.7, 0.5, 1.0, 0.0, 1),  # KL 0.0872 > 0.05
        (dppo_kl, options.DppoKlOptions(), 0.6, 0.5, 1.0, -1.2, 0),  # KL 0.0204
        (dppo_kl, options.DppoKlOptions(), 0.3, 0.5, -1.0, 0.0, 1),
        (dppo_kl, options.DppoKlOptions(), 0.3, 0.5, 1.0, -0.6, 0),
        (reinforce, options.ReinforceOptions(), 0.6, 0.2, 1.0, -2.0, 1),
        (clip_cov, options.ClipCovOptions(), 0.75, 0.5, 1.0, 0.0, 1),
        (clip_cov, options.ClipCovOptions(), 0.25, 0.5, -1.0, 0.0, 1),
        (clip_cov, options.ClipCovOptions(), 0.75, 0.5, -1.0, 1.5, 0),
    ],
)
def test_clipping_by_hand(loss, options, probability, old, advantage, gradient, clipped):
    output, _, slope = run(loss, options, math.log(probability), math.log(old), advantage)
    assert slope == pytest.approx(gradient, rel=1e-12)
    assert (int(output.metrics["pg_clipfrac"].total), int(output.metrics["pg_clipfrac"].count)) == (clipped, 1)


def test_a_drawn_token_of_clip_cov_has_no_term_and_no_gradient():
    output, value, gradient = run(clip_cov, options.ClipCovOptions(), -1.0, -1.1, 2.0, selected=True)
    assert (value, gradient) == (0.0, 0.0)
    assert float(output.metrics["clip_cov_frac"].total) == 1


@pytest.mark.parametrize("log_ratio", [-25.0, -1.7, -0.1, -1e-4, 0.0, 1e-4, 0.1, 1.7])
@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k3", lambda d: math.expm1(max(d, -20.0)) - max(d, -20.0), lambda d: math.expm1(d) if d > -20 else 0.0),
        ("abs", abs, lambda d: math.copysign(1.0, d) if d else 0.0),
    ],
)
def test_a_chosen_token_of_kl_cov_gets_the_kl_term(log_ratio, estimator, value, slope):
    """The reference in plain Python floats: rho - 1 - d and its derivative rho - 1, or |d|; d held at -20."""
    settings = options.KlCovOptions(ppo_kl_coef=0.5, kl_estimator=estimator)
    d = -30.0 - (-30.0 - log_ratio)  # as rounding leaves it
    output, term, gradient = run(kl_cov, settings, -30.0, -30.0 - log_ratio, 2.0, selected=True)
    ratio = math.exp(max(d, -20.0))
    assert term == pytest.approx(-2 * ratio + 0.5 * value(d), rel=1e-12)
    assert gradient == pytest.approx((-2 * ratio if d > -20 else 0.0) + 0.5 * slope(d), rel=1e-12, abs=1e-15)
    assert float(output.metrics["kl_cov_frac"].total) == 1


def test_over_tokens_of_the_old_policy_the_kl_term_of_kl_cov_is_the_divergence_and_has_its_gradient():
    """Enumerated over a vocabulary, against the KL(pi_old || pi) of equation 14."""
    old = torch.tensor([0.3, -0.5, 1.1, 0.0], dtype=torch.float64).log_softmax(0)
    logits = torch.tensor([0.1, 0.4, 0.9, -1.2], dtype=torch.float64, requires_grad=True)
    policy = logits.log_softmax(0)
    divergence = (old.exp() * (old - policy)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    every = torch.ones(1, 4, dtype=torch.bool)
    inputs = PolicyLossInputs(policy[None], old[None], torch.zeros(1, 4), every, selected=every)
    mean = (kl_cov(inputs, options.KlCovOptions()).terms[0] * old.exp()).sum()
    mean.backward()
    assert mean.item() == pytest.approx(divergence.item(), rel=1e-12)
    assert torch.allclose(logits.grad, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("estimator", "most"), [("k3", 1e-5), ("abs", 10.0)])
def test_rounding_in_the_old_log_probs_changes_no_first_update_of_kl_cov(estimator, most):
    generator = torch.Generator().manual_seed(0)
    log_probs = -3 * torch.rand(64, 32, generator=generator)
    advantages = torch.randn(64, 1, generator=generator).expand(64, 32)
    selected = torch.rand(64, 32, generator=generator) < 2e-2
    everywhere = torch.ones(64, 32, dtype=torch.bool)

    def update(old):
        leaf = log_probs.clone().requires_grad_()
        inputs = PolicyLossInputs(leaf, old, advantages, everywhere, selected=selected)
        kl_cov(inputs, options.KlCovOptions(kl_estimator=estimator)).terms.sum().backward()
        return leaf.grad

    rounded = log_probs + 1e-7 * torch.randn(64, 32, generator=generator)
    change = (update(rounded) - update(log_probs)).norm() / update(log_probs).norm()
    assert change <= most and (estimator == "k3" or change > 1e-2)


@pytest.mark.parametrize("task", [False, True])
def test_opd_takes_the_teachers_log_ratio_as_advantage(task):
    settings = options.OpdOptions(coefficient=0.5, use_task_reward=task)
    output, value, gradient = run(opd, settings, -1.0, -1.2, 3.0, ref_log_probs=-0.2)
    advantage = 0.5 * (-0.2 + 1.2) + (3.0 if task else 0.0)
    assert value == gradient == pytest.approx(-advantage * math.exp(0.2), rel=1e-12)
    assert float(output.metrics["teacher_kl"].total) == pytest.approx(-1.0)


def test_the_mean_gradient_of_opd_on_policy_is_that_of_the_reverse_kl():
    logits = torch.tensor([0.3, -0.5, 1.1], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([-0.2, 0.4, 0.1], dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    divergence = (policy.exp() * (policy - teacher)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    fixed = policy.detach()
    inputs = PolicyLossInputs(
        policy[None], fixed[None], torch.zeros(1, 3), torch.ones(1, 3).bool(), ref_log_probs=teacher[None]
    )
    (opd(inputs, options.OpdOptions()).terms[0] * fixed.exp()).sum().backward()
    assert torch.allclose(logits.grad, expected, rtol=1e-12, atol=1e-14)


def test_binary_kl_at_the_ends():
    log_probs = torch.tensor([0.0, 0.0, math.log(0.5), -1e4], dtype=torch.float64)
    others = torch.tensor([0.0, math.log(0.5), 0.0, -1e4], dtype=torch.float64)
    assert binary_kl(log_probs, others).tolist() == [0.0, pytest.approx(math.log(2)), math.inf, 0.0]


def test_the_gate_of_sapo_is_open_on_policy():
    metric = run(sapo, options.SapoOptions(), -1.0, -1.0, 1.0)[0].metrics["gate"]
    assert metric.value == 1.0
