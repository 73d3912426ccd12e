import pytest
import torch

from corerl_torch.token_statistics import token_statistics

NAMES = ("log_probs", "entropy", "sum_pi_squared")


def in_float64(logits, targets, temperature):
    """Each output from its definition, by autograd."""
    pi = torch.softmax(logits / temperature, dim=-1)
    chosen = pi.gather(1, targets[:, None])[:, 0].log()
    return chosen, -(pi * pi.log()).sum(dim=-1), pi.square().sum(dim=-1)


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, 40, generator=generator)
    return logits, torch.randint(40, (6,), generator=generator), torch.randn(3, 6, generator=generator)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_values_and_gradients_are_those_of_the_definitions(rows, temperature, wanted):
    logits, targets, weights = rows
    ours, true = logits.clone().requires_grad_(), logits.double().requires_grad_()
    given = token_statistics(ours, targets, temperature, entropy=wanted[0], sum_pi_squared=wanted[1])
    expected = in_float64(true, targets, temperature)
    used = [index for index, there in enumerate((True, *wanted)) if there]
    for index in used:
        torch.testing.assert_close(given[index].double(), expected[index], rtol=1e-6, atol=1e-6)
    sum((given[index] * weights[index]).sum() for index in used).backward()
    sum((expected[index] * weights[index].double()).sum() for index in used).backward()
    torch.testing.assert_close(ours.grad.double(), true.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("index", range(3))
def test_the_gradient_of_one_output_alone(rows, index):
    logits, targets, weights = rows
    ours, true = logits.clone().requires_grad_(), logits.double().requires_grad_()
    (token_statistics(ours, targets, 1.0, entropy=True, sum_pi_squared=True)[index] * weights[0]).sum().backward()
    (in_float64(true, targets, 1.0)[index] * weights[0].double()).sum().backward()
    torch.testing.assert_close(ours.grad.double(), true.grad, rtol=1e-6, atol=1e-6)


def test_a_token_of_probability_zero_adds_nothing():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    given = token_statistics(logits, torch.tensor([0]), 1.0, entropy=True, sum_pi_squared=True)
    assert [each.item() for each in given] == pytest.approx([-0.6931472, 0.6931472, 0.5])
    sum(each.sum() for each in given).backward()
    assert logits.grad[0].tolist() == pytest.approx([0.5, -0.5, 0.0])


def test_the_gradient_has_the_dtype_of_the_logits(rows):
    logits = rows[0].bfloat16().requires_grad_()
    result = token_statistics(logits, rows[1], 1.0, entropy=False, sum_pi_squared=False)
    result.log_probs.sum().backward()
    assert (result.log_probs.dtype, logits.grad.dtype) == (torch.float32, torch.bfloat16)
