import pytest
import torch

from corerl.contracts.experience import collate
from corerl.contracts.token_outputs import TokenOutputs
from corerl.contracts.value_losses import LossOutput, ValueLossInputs
from corerl.objective import ValueObjective, loss_weights
from corerl_ppo.options import ClippedOptions
from corerl_ppo.value_loss import clipped, squared


def inputs(value: float, old: float, target: float) -> ValueLossInputs:
    def tensor(number: float) -> torch.Tensor:
        return torch.tensor([[number]], dtype=torch.float64)

    return ValueLossInputs(tensor(value).requires_grad_(), tensor(old), tensor(target), torch.tensor([[True]]))


def slope(output: LossOutput, batch: ValueLossInputs) -> float:
    (gradient,) = torch.autograd.grad(output.terms.sum(), batch.values)
    return gradient.item()


@pytest.mark.parametrize(
    ("value", "old", "target", "term", "gradient", "clips"),
    [
        (1.25, 1.0, 2.0, 0.28125, -0.75, 0),  # inside: 1/2 (V - R)^2
        (2.0, 1.0, 3.0, 1.125, 0.0, 1),  # above, towards R: v = 1.5, 1/2 · 1.5^2
        (0.0, 1.0, -1.0, 1.125, 0.0, 1),  # below, towards R: v = 0.5
        (2.0, 1.0, 0.0, 2.0, 2.0, 0),  # above, away from R: the unclipped error is larger
        (0.0, 1.0, 2.0, 2.0, -2.0, 0),  # below, away from R
        (4.0, 1.0, 2.0, 2.0, 2.0, 0),  # past R by more than v = 1.5 lacks
        (2.25, 1.0, 2.0, 0.125, 0.0, 1),  # past R by less
        (2.0, 2.0, 2.0, 0.0, 0.0, 0),
    ],
)
def test_clipped_terms_gradients_and_fraction_by_hand(
    value: float, old: float, target: float, term: float, gradient: float, clips: int
) -> None:
    batch = inputs(value, old, target)
    output = clipped(batch, ClippedOptions(cliprange_value=0.5))
    assert output.terms.item() == pytest.approx(term, rel=1e-12)
    assert slope(output, batch) == pytest.approx(gradient, rel=1e-12)
    assert (float(output.metrics["vf_clipfrac"].total), float(output.metrics["vf_clipfrac"].count)) == (clips, 1)


def test_the_width_of_the_range_is_an_option() -> None:
    batch = inputs(2.0, 1.0, 3.0)
    assert clipped(batch, ClippedOptions(cliprange_value=0.25)).terms.item() == 0.5 * 1.75**2


def test_squared_and_its_gradient_by_hand() -> None:
    batch = inputs(2.0, -9.0, 3.5)
    output = squared(batch)
    assert (output.terms.item(), slope(output, batch), output.metrics) == (1.125, -1.5, {})


def test_the_fraction_counts_valid_tokens_alone() -> None:
    values = torch.tensor([[2.0, 1.25, 2.0], [2.0, 2.0, 1.0]])
    mask = torch.tensor([[True, True, False], [True, False, True]])
    batch = ValueLossInputs(values, torch.ones(2, 3), torch.full((2, 3), 3.0), mask)
    clipfrac = clipped(batch, ClippedOptions()).metrics["vf_clipfrac"]
    assert (float(clipfrac.total), float(clipfrac.count)) == (2, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_inside_the_range_is_never_counted_as_clipped(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    old, noise, target = torch.rand(3, 50, 40, generator=generator, dtype=dtype).unbind()
    batch = ValueLossInputs(old + 0.9 * (noise - 0.5), old, 10 * target, torch.ones(50, 40, dtype=torch.bool))
    output = clipped(batch, ClippedOptions(0.5))
    assert output.terms.dtype == dtype and float(output.metrics["vf_clipfrac"].total) == 0
    assert torch.equal(output.terms, squared(batch).terms)


@pytest.mark.parametrize("loss", [squared, lambda inputs: clipped(inputs, ClippedOptions())])
def test_an_undefined_return_of_a_masked_token_has_no_gradient(loss) -> None:
    batch = collate([[1]], [[2, 3]], [0], masks=[[True, False]])
    batch.values, batch.returns = torch.tensor([[0.5, float("nan")]]), torch.tensor([[1.0, float("nan")]])
    batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
    values = torch.zeros(1, 2, requires_grad=True)
    ValueObjective(loss)(TokenOutputs(values=values), batch).loss.backward()
    assert values.grad is not None and values.grad[0, 0] != 0 and values.grad[0, 1] == 0
