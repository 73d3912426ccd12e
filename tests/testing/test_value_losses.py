"""Wrong value losses, and the checks that catch them."""

from typing import Any

import pytest
import torch

from corerl.objective import masked_mean
from corerl.registry.value_losses import LossOutput, Mean, ValueLossInputs


def squared(inputs: ValueLossInputs) -> LossOutput:
    error = inputs.values - inputs.returns
    return LossOutput(error**2 / 2, {"error": masked_mean(error.detach().abs(), inputs.response_mask)})


def clipped(inputs: ValueLossInputs) -> LossOutput:
    near = inputs.old_values + (inputs.values - inputs.old_values).clamp(-0.5, 0.5)
    return LossOutput(torch.maximum((inputs.values - inputs.returns) ** 2, (near - inputs.returns) ** 2) / 2)


@pytest.mark.parametrize("loss", [squared, clipped])
def test_right_losses_pass(outcomes: Any, loss: Any) -> None:
    statuses = {name: result.status for name, result in outcomes("value_losses", loss).items()}
    assert {status for name, status in statuses.items() if name != "same_on_cuda"} == {"ok"}


def micro_batch_mean(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms / inputs.response_mask.sum())


def one_number_a_row(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms.sum(dim=1))


def away_from_the_return(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(-squared(inputs).terms)


def towards_the_old_value(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput((inputs.values - inputs.old_values) ** 2)


def exponential(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput((inputs.values - inputs.returns).cosh())


def normalised_by_the_row(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms / (1 + inputs.values.abs().sum(dim=1, keepdim=True)))


def modifies_its_input(inputs: ValueLossInputs) -> LossOutput:
    terms = squared(inputs).terms
    inputs.returns.zero_()
    return LossOutput(terms)


def loops_over_tokens(inputs: ValueLossInputs) -> LossOutput:
    terms = squared(inputs).terms
    return LossOutput(torch.stack([terms[:, column] for column in range(terms.shape[1])], dim=1))


def mean_as_a_metric(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms, {"spread": Mean(inputs.returns.std(), 1)})


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] / 2


def wrong_backward(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(Halved.apply(squared(inputs).terms))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("loss", "check", "message"),
    [
        (micro_batch_mean, "rows_are_independent", "a mean over the micro-batch is the usual cause"),
        (one_number_a_row, "shape_and_dtype", "the terms have the shape (6,) where (6, 8) is right"),
        (away_from_the_return, "gradient_leads_to_the_return", "the gradient leads away from the return"),
        (towards_the_old_value, "gradient_leads_to_the_return", "there is no gradient"),
        (exponential, "finite_at_extreme_values", "at a value of 1e+06 the terms hold inf"),
        (normalised_by_the_row, "masked_tokens_do_not_count", "the loss changes with other numbers at masked tokens"),
        (modifies_its_input, "inputs_untouched", "it modifies its input returns"),
        (loops_over_tokens, "vectorised", "it loops in Python"),
        (mean_as_a_metric, "metrics_add_up", "added up over micro-batches: its total must be a sum"),
        (wrong_backward, "gradient_matches_differences", "differs from central differences of the loss by"),
    ],
)
def test_a_wrong_loss_is_caught(failures: Any, loss: Any, check: str, message: str) -> None:
    assert message in failures("value_losses", loss, only=check)[check]
