"""What every policy loss of the plugin keeps to."""

import dataclasses
import itertools
import re

import pytest
import torch

from corerl.contracts.experience import Experience
from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.contracts.token_outputs import TokenOutputs
from corerl.objective import PolicyObjective, loss_weights
from corerl.registry import load_object
from corerl_grpo import plugin

ENTRIES = {}
plugin.register_policy_losses(lambda name, target, **facts: ENTRIES.setdefault(name, (target, facts)))


@pytest.fixture(params=sorted(ENTRIES))
def loss(request):
    target, facts = ENTRIES[request.param]
    module, _, attribute = target.partition(":")
    function = getattr(__import__(module, fromlist=[attribute]), attribute)
    chosen = load_object(facts["options"]) if "options" in facts else None
    return (lambda inputs: function(inputs, chosen())) if chosen else function


def batch(dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)

    def normal():
        return torch.randn(6, 9, generator=generator, dtype=dtype)

    old = -normal().abs()
    mask = torch.rand(6, 9, generator=generator) < 0.7
    mask[2] = False
    chosen = torch.rand(6, 9, generator=generator) < 0.2
    log_probs = old + 0.3 * normal()
    return PolicyLossInputs(log_probs, old, normal(), mask, old.clone(), old + 0.5 * normal(), chosen)


def evaluated(loss, inputs):
    """Terms inside the mask, their gradient, and the metrics, with uneven weights on the terms."""
    log_probs = inputs.log_probs.clone().requires_grad_()
    output = loss(dataclasses.replace(inputs, log_probs=log_probs))
    terms = output.terms[inputs.response_mask]
    (terms * torch.linspace(0.5, 2, len(terms), dtype=terms.dtype)).sum().backward()
    metrics = {name: (float(mean.total), float(mean.count)) for name, mean in output.metrics.items()}
    return terms.detach(), log_probs.grad[inputs.response_mask], metrics


@pytest.mark.parametrize("filler", [float("nan"), float("inf"), 1e30])
def test_what_stands_outside_the_mask_does_not_matter(loss, filler):
    inputs = batch(torch.float64)
    values = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    tensors = {
        name: torch.where(inputs.response_mask, value, filler)
        for name, value in values.items()
        if value is not None and value.dtype is not torch.bool
    }
    terms, gradient, metrics = evaluated(loss, inputs)
    other_terms, other_gradient, other_metrics = evaluated(loss, dataclasses.replace(inputs, **tensors))
    assert torch.equal(terms, other_terms) and torch.equal(gradient, other_gradient)
    assert metrics == other_metrics


@pytest.mark.parametrize("filler", [float("nan"), float("inf")])
def test_an_objective_has_no_gradient_outside_the_mask(loss, filler):
    inputs = batch(torch.float64)
    given = {
        field.name: torch.where(inputs.response_mask, getattr(inputs, field.name), filler)
        for field in dataclasses.fields(inputs)
        if field.name not in ("response_mask", "selected", "of_logits")
    }
    log_probs = given.pop("log_probs").requires_grad_()
    lengths = torch.full((6,), 9)
    experience = Experience(torch.zeros(6, 10).long(), lengths // 9, lengths, inputs.response_mask, lengths, **given)
    experience.selected, experience.loss_weights = inputs.selected, loss_weights(inputs.response_mask, "token-mean")
    output = PolicyObjective(loss, lambda log_probs, ref: (log_probs - ref) ** 2, 0.1)
    output(TokenOutputs(log_probs), experience).loss.backward()
    assert bool(log_probs.grad.isfinite().all()) and not log_probs.grad[~inputs.response_mask].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_terms_and_gradients_are_finite_for_any_log_probs(loss, dtype):
    levels = [0.0, -1e-8, -1e-3, -1.0, -30.0, -200.0, -1e4]
    cases = list(itertools.product(levels, levels, levels, [-3.0, 0.0, 3.0], [False, True]))
    log_probs, old, ref, advantages = (
        torch.tensor([case[i] for case in cases], dtype=dtype)[:, None] for i in range(4)
    )
    chosen = torch.tensor([case[4] for case in cases])[:, None]
    inputs = PolicyLossInputs(log_probs, old, advantages, torch.ones_like(chosen), old, ref, chosen)
    terms, gradient, metrics = evaluated(loss, inputs)
    assert terms.isfinite().all() and gradient.isfinite().all()
    assert all(0 <= total <= count for name, (total, count) in metrics.items() if name.endswith("frac"))


def test_metrics_count_the_tokens_of_the_mask(loss):
    inputs = batch()
    for total, count in evaluated(loss, inputs)[2].values():
        assert count == int(inputs.response_mask.sum()) and abs(total) < 100 * count


def test_every_summary_names_its_paper():
    for _, facts in ENTRIES.values():
        assert re.search(r"\b\d{4}\.\d{5}\b", facts["summary"])
