import math

import pytest
import torch

from corerl_distill.divergences import bins, divergence

KINDS = ("reverse_kl", "forward_kl", "jsd")


def drawn(rows=5, vocabulary=11, seed=0, dtype=torch.float64, scale=3.0):
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, vocabulary, generator=random, dtype=torch.float64)
    teacher = torch.log_softmax(scale * torch.randn(rows, vocabulary, generator=random, dtype=torch.float64), dim=-1)
    return logits.to(dtype), teacher.to(dtype)


def reference(logits, teacher, kind, beta=0.5, temperature=1.0):
    """The definitions, by autograd in float64."""
    p = torch.softmax(logits.double() / temperature, dim=-1)
    q = teacher.double().exp()
    m = beta * q + (1 - beta) * p
    if kind == "reverse_kl":
        return (p * (p / q).log()).sum(dim=-1)
    if kind == "forward_kl":
        return (q * (q / p).log()).sum(dim=-1)
    return (beta * q * (q / m).log() + (1 - beta) * p * (p / m).log()).sum(dim=-1)


def value_and_gradient(function, logits):
    logits = logits.clone().requires_grad_()
    value = function(logits)
    weights = torch.arange(1, len(value) + 1, dtype=value.dtype)
    (gradient,) = torch.autograd.grad((value * weights).sum(), logits)
    return value.detach(), gradient


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_value_and_gradient_are_those_of_the_definition(kind, temperature, beta):
    logits, teacher = drawn()
    value, gradient = value_and_gradient(
        lambda z: divergence(z, teacher, kind, beta=beta, temperature=temperature), logits
    )
    true, true_gradient = value_and_gradient(lambda z: reference(z, teacher, kind, beta, temperature), logits)
    torch.testing.assert_close(value, true, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, true_gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_equals_the_float64_reference_to_a_millionth(kind):
    logits, teacher = drawn(rows=40, vocabulary=1000, dtype=torch.float32, scale=1.5)
    logits.requires_grad_()
    value, true = divergence(logits, teacher, kind), reference(logits, teacher, kind)
    assert ((value - true).abs() <= 1e-6 * true).all()
    gradient, true_gradient = (torch.autograd.grad(each.sum(), logits)[0] for each in (value, true))
    assert (gradient - true_gradient).abs().max() <= 1e-6 and true_gradient.abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_top_k_is_the_divergence_of_the_coarser_distributions(kind):
    logits, teacher = drawn()
    top = teacher.topk(4, dim=1).indices

    def coarse(z):
        p = torch.softmax(z, dim=-1)
        own = p.gather(1, top)
        log_bins = torch.cat([own, 1 - own.sum(dim=1, keepdim=True)], dim=1).log()
        return reference(log_bins, bins(teacher, top), kind)

    value, gradient = value_and_gradient(lambda z: divergence(z, bins(teacher, top), kind, top=top), logits)
    true, true_gradient = value_and_gradient(coarse, logits)
    torch.testing.assert_close(value, true, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, true_gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_top_k_grows_with_k_to_the_divergence_of_the_vocabulary(kind):
    logits, teacher = drawn(rows=20)
    whole, whole_gradient = value_and_gradient(lambda z: divergence(z, teacher, kind), logits)
    last = torch.zeros(len(logits), dtype=torch.float64)
    for k in range(1, logits.shape[1] + 1):
        top = teacher.topk(k, dim=1).indices
        value, gradient = value_and_gradient(
            lambda z, top=top: divergence(z, bins(teacher, top), kind, top=top), logits
        )
        assert (value >= last - 1e-12).all() and (value <= whole + 1e-12).all()
        last = value
    torch.testing.assert_close(value, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-10, atol=1e-12)


def test_jsd_tends_to_both_kl():
    logits, teacher = drawn()
    small = 1e-6
    forward, reverse = (divergence(logits, teacher, kind) for kind in ("forward_kl", "reverse_kl"))
    torch.testing.assert_close(divergence(logits, teacher, "jsd", beta=small) / small, forward, rtol=1e-3, atol=0)
    torch.testing.assert_close(divergence(logits, teacher, "jsd", beta=1 - small) / small, reverse, rtol=1e-3, atol=0)


def test_by_hand():
    logits = torch.tensor([[0.0, 0.0]])
    teacher = torch.tensor([[0.75, 0.25]]).log()
    reverse = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    forward = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert divergence(logits, teacher, "reverse_kl").item() == pytest.approx(reverse, rel=1e-6)
    assert divergence(logits, teacher, "forward_kl").item() == pytest.approx(forward, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_distributions_have_neither_divergence_nor_gradient(kind):
    logits, _ = drawn(dtype=torch.float32)
    value, gradient = value_and_gradient(lambda z: divergence(z, torch.log_softmax(logits, dim=-1), kind), logits)
    assert value.abs().max() <= 1e-6 and gradient.abs().max() <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [None, 2])
def test_extreme_logits_give_finite_gradients(kind, top_k):
    logits = torch.tensor([[80.0, -80.0, 0.0], [-80.0, 80.0, 0.0]])
    teacher = torch.log_softmax(torch.tensor([[80.0, -80.0, 0.0], [80.0, -80.0, 0.0]]), dim=-1)
    top = None if top_k is None else teacher.topk(top_k, dim=1).indices
    given = teacher if top is None else bins(teacher, top)
    value, gradient = value_and_gradient(lambda z: divergence(z, given, kind, top=top), logits)
    assert value.isfinite().all() and gradient.isfinite().all()
    assert value[0] <= 1e-6 and value[1] > (0.5 if kind == "jsd" else 50)


def test_bf16_logits_get_bf16_gradients_of_float32_arithmetic():
    logits, teacher = drawn(rows=4, vocabulary=50, dtype=torch.float32)
    rounded = logits.bfloat16()
    _, gradient = value_and_gradient(lambda z: divergence(z, teacher, "reverse_kl"), rounded)
    _, true = value_and_gradient(lambda z: divergence(z, teacher, "reverse_kl"), rounded.float())
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient.float(), true, rtol=1e-2, atol=1e-4)


def test_the_sampled_form_has_the_mean_and_the_gradient_of_the_reverse_kl():
    """Summed over every token with its probability."""
    logits, teacher = drawn()
    old = torch.log_softmax(logits, dim=-1)

    def sampled(z):
        ratio = (torch.log_softmax(z, dim=-1) - old).exp()
        return (old.exp() * (old - teacher) * ratio).sum(dim=-1)

    value, gradient = value_and_gradient(sampled, logits)
    true, true_gradient = value_and_gradient(lambda z: divergence(z, teacher, "reverse_kl"), logits)
    torch.testing.assert_close(value, true)
    torch.testing.assert_close(gradient, true_gradient)
