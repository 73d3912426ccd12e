"""Experts by grouped products, beside transformers' own loop over experts in float64, and items of rows."""

import pytest
import torch
from transformers import AutoModelForCausalLM, NemotronHConfig

from corerl_torch.experts.grouped import _Experts, expert_modules, use
from corerl_torch.experts.items import Items
from moe_models import FAMILIES, model_of


def parts(family):
    """A module of experts with random weights, in float64, and one like it."""
    model = model_of(family).double()
    module = next(iter(expert_modules(model).values()))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return model, module


def tokens(module, number=23, top_k=2, dtype=torch.float64):
    """Hidden states, chosen experts (none of them expert 3) and their weights."""
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(number, 32, generator=generator, dtype=torch.float64)
    scores = torch.rand(number, 8, generator=generator, dtype=torch.float64)
    scores[:, 3] = 0
    weights, chosen = scores.topk(top_k)
    return states.to(dtype).requires_grad_(), chosen, weights.to(dtype).requires_grad_()


def outcome(module, states, chosen, weights):
    """Output and gradients of a loss that tells its elements apart."""
    output = module(states, chosen, weights)
    seed = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    grads = torch.autograd.grad((output * seed).sum(), [states, weights, *module.parameters()])
    return [output, *grads]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_outputs_and_gradients_are_those_of_the_loop_over_experts(family):
    """Stacked and transposed weights, biases, limited gates; an expert without tokens."""
    model, module = parts(family)
    model.config._experts_implementation = "eager"
    given = tokens(module)
    true = outcome(module, *given)
    use(model)
    for one, other in zip(outcome(module, *given), true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_experts_without_a_gate():
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "layers_block_type": ["moe"], "n_routed_experts": 8}
    shape |= {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16}
    model = AutoModelForCausalLM.from_config(NemotronHConfig(vocab_size=50, n_group=1, topk_group=1, **shape)).double()
    (module,) = expert_modules(model).values()
    assert not module.has_gate
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(1))
    model.config._experts_implementation = "eager"
    given = tokens(module)
    true = outcome(module, *given)
    use(model)
    for one, other in zip(outcome(module, *given), true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_without_tokens_all_weights_have_a_gradient_of_zeros():
    _, module = parts("gpt_oss")
    states, chosen, weights = tokens(module, number=4)
    output = _Experts(module, None).local(states, torch.full_like(chosen, 8), weights, 0)
    gradients = torch.autograd.grad(output.sum(), [states, weights, *module.parameters()])
    assert all(not each.any() for each in (output, *gradients))


def test_under_autocast_products_are_in_its_dtype():
    model, module = parts("qwen3_moe")
    module.float()
    use(model)
    given = tokens(module, dtype=torch.float32)
    exact = outcome(module, *given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = outcome(module, *given)
    for one, other in zip(rounded, exact, strict=True):
        assert one.dtype == torch.float32
        assert 1e-4 < (one - other).norm() / other.norm() < 2e-2


def test_items_are_copied_and_added_up():
    """Each operation is the other's transpose, with and without rows that have no item."""
    rows = torch.tensor([3, 1, 3, 0, 3])
    items = Items.of(rows, 5)
    matrix = torch.nn.functional.one_hot(rows, 5).double()
    states = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert items.spread(states).equal(states[rows])
    torch.testing.assert_close(items.collect(matrix @ states), matrix.T @ matrix @ states)
    assert torch.autograd.gradcheck(items.spread, states) and torch.autograd.gradcheck(
        items.collect, torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    )
    order = torch.tensor([5, 0, 3, 2, 1, 4])
    for one, other in zip(Items.sorted(order, 2), Items.of(order // 2, 3), strict=True):
        assert one.sort().values.equal(other.sort().values)
    torch.testing.assert_close(
        Items.sorted(order, 2).collect(torch.arange(6.0)[:, None]), torch.tensor([[5.0], [5.0], [5.0]])
    )
