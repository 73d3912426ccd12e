"""What the checks of policy losses accept and report; wrong ones are in planted/policy_losses."""

from typing import Any

import pytest
import torch
from planted.policy_losses.token_losses import (
    ratio,
    sequence,
    stopped_weights,
    surrogate,
    towards_a_teacher,
)
from torch import Tensor

from corerl.contracts.policy_losses import LossOutput, Mean, PolicyLossInputs


def under_no_grad(inputs: PolicyLossInputs) -> LossOutput:
    with torch.no_grad():
        weights = ratio(inputs)
        weights[:, 1:].clamp_(max=1.1)
    return LossOutput(-inputs.advantages * weights * inputs.log_probs)


def of_the_data(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * ratio(inputs).data * inputs.log_probs)


def straight_through(inputs: PolicyLossInputs) -> LossOutput:
    """The value of one loss with the gradient of another."""
    meant = stopped_weights(inputs).terms
    return LossOutput(surrogate(inputs).terms.detach() + meant - meant.detach())


def detaches_a_metric(inputs: PolicyLossInputs) -> LossOutput:
    share = (ratio(inputs).detach() > 1).float() * inputs.response_mask
    return LossOutput(surrogate(inputs).terms, {"share": Mean(share.sum(), inputs.response_mask.sum())})


def constant_as_a_metric(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms, {"scale": Mean(0.75, 1.0)})


@pytest.mark.parametrize(
    "loss", [stopped_weights, under_no_grad, of_the_data, straight_through, sequence, detaches_a_metric]
)
def test_the_gradient_is_held_against_differences_whatever_the_loss_stops(outcomes: Any, loss: Any) -> None:
    (result,) = outcomes("policy_losses", loss, only="gradient_matches_differences").values()
    assert (result.status, result.reason) == ("ok", "")


class Rounded(torch.autograd.Function):
    """A gradient where there is none: on purpose."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        return tensor.round()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def rounded(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * Rounded.apply(10 * inputs.log_probs) / 10)  # type: ignore[no-untyped-call]


def test_a_gradient_declared_where_the_value_is_flat_is_reported(outcomes: Any) -> None:
    (result,) = outcomes("policy_losses", rounded, only="gradient_matches_differences").values()
    assert result.status == "skipped"
    assert "a torch.autograd.Function declares a gradient where the value does not change: up to" in result.reason


def test_a_constant_may_be_a_metric(outcomes: Any) -> None:
    assert outcomes("policy_losses", constant_as_a_metric, only="metrics_add_up")["metrics_add_up"].status == "ok"


def test_reference_log_probs_are_given_when_they_are_declared(failures: Any) -> None:
    assert failures("policy_losses", towards_a_teacher, needs={"ref"}) == {}
    assert "ref_log_probs" in failures("policy_losses", towards_a_teacher, only="shape_and_dtype")["shape_and_dtype"]
