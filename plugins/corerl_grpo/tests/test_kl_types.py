import math

import pytest
import torch

from corerl_grpo import plugin

ENTRIES = {}
plugin.register_kl_types(lambda name, target, **facts: ENTRIES.setdefault(name, target))


def kl_type(name):
    module, _, attribute = ENTRIES[name].partition(":")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def evaluated(name, log_probs, ref_log_probs, dtype=torch.float64):
    log_probs = torch.tensor(log_probs, dtype=dtype, requires_grad=True)
    terms = kl_type(name)(log_probs, torch.tensor(ref_log_probs, dtype=dtype))
    terms.sum().backward()
    return terms.detach(), log_probs.grad


# name -> value and derivative at d
REFERENCES = {
    "kl": lambda d: (d, 1.0),
    "abs": lambda d: (abs(d), math.copysign(1.0, d)),
    "mse": lambda d: (0.5 * d * d, d),
    "low_var_kl": lambda d: (math.exp(-d) + d - 1, 1 - math.exp(-d)),
    "kl+": lambda d: (d, d),
    "abs+": lambda d: (abs(d), d),
    "low_var_kl+": lambda d: (math.exp(-d) + d - 1, d),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("difference", [-1.7, -0.3, 0.4, 2.1])
def test_value_and_gradient_by_hand(name, difference):
    value, gradient = evaluated(name, [-3.0 + difference], [-3.0])
    assert (value.item(), gradient.item()) == tuple(pytest.approx(x, rel=1e-12) for x in REFERENCES[name](difference))


@pytest.mark.parametrize(
    ("name", "other"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl"), ("k1+", "kl+"), ("k3+", "low_var_kl+")]
)
def test_other_names(name, other):
    assert ENTRIES[name] == ENTRIES[other]


@pytest.mark.parametrize("name", ["kl", "k1", "abs", "low_var_kl", "k3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_plus_forms_have_the_very_value_of_their_base(name, dtype):
    log_probs, ref_log_probs = -5 * torch.rand(2, 64, generator=torch.Generator().manual_seed(0)).double()
    log_probs[:2] = torch.tensor([-1e4, 0.0])
    ref_log_probs[:2] = torch.tensor([0.0, -1e4])
    base, _ = evaluated(name, log_probs.tolist(), ref_log_probs.tolist(), dtype)
    plus, gradient = evaluated(name + "+", log_probs.tolist(), ref_log_probs.tolist(), dtype)
    assert torch.equal(base, plus) and plus.dtype is dtype
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["k2", "kl+", "abs+", "low_var_kl+"])
def test_the_mean_gradient_under_the_policy_is_that_of_the_divergence(name):
    logits = torch.tensor([0.3, -0.5, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.2, 0.4, 0.1, 0.9], dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    divergence = (policy.exp() * (policy - reference)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    (policy.exp().detach() * kl_type(name)(policy, reference)).sum().backward()
    assert torch.allclose(logits.grad, expected, rtol=1e-12, atol=1e-14)


def test_full_is_the_sum_over_the_vocabulary():
    log_probs = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2)).double().log_softmax(-1)
    reference = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(3)).double().log_softmax(-1)
    terms = kl_type("full")(log_probs, reference)
    assert terms.shape == (2, 3)
    for i in range(2):
        for t in range(3):
            pairs = zip(log_probs[i, t].tolist(), reference[i, t].tolist(), strict=True)
            assert terms[i, t].item() == pytest.approx(sum(math.exp(p) * (p - q) for p, q in pairs), rel=1e-12)


def test_full_takes_excluded_tokens_for_nothing():
    log_probs = [[math.log(0.25), math.log(0.75), -math.inf, -math.inf, -1e4]]
    reference = [[math.log(0.5), math.log(0.5), -math.inf, -1.0, -math.inf]]
    terms, gradient = evaluated("full", log_probs, reference)
    assert terms.item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), rel=1e-12)
    expected = [0.25 * (math.log(0.5) + 1), 0.75 * (math.log(1.5) + 1), 0.0, 0.0, 0.0]
    assert gradient[0].tolist() == [pytest.approx(number, rel=1e-12) for number in expected]


def test_full_is_infinite_where_the_reference_excludes_a_token():
    log_probs = torch.tensor([[0.5, 0.5]]).log()
    assert kl_type("full")(log_probs, torch.tensor([[0.0, -math.inf]])).item() == math.inf
