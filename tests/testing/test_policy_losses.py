"""Wrong policy losses, and the checks that catch them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from corerl.registry.policy_losses import LossOutput, Mean, PolicyLossInputs


def ratio(inputs: PolicyLossInputs) -> Tensor:
    return (inputs.log_probs - inputs.old_log_probs).clamp(-20, 20).exp()


def surrogate(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * ratio(inputs))


def stop_gradient(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * ratio(inputs).detach() * inputs.log_probs)


def under_no_grad(inputs: PolicyLossInputs) -> LossOutput:
    with torch.no_grad():
        weights = ratio(inputs)
    return LossOutput(-inputs.advantages * weights * inputs.log_probs)


def sequence(inputs: PolicyLossInputs) -> LossOutput:
    """A ratio of the whole sequence."""
    mask = inputs.response_mask
    difference = torch.where(mask, inputs.log_probs - inputs.old_log_probs, 0.0)
    mean = difference.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return LossOutput(-inputs.advantages * mean.clamp(-20, 20).exp().expand_as(inputs.advantages))


def detaches_a_metric(inputs: PolicyLossInputs) -> LossOutput:
    share = (ratio(inputs).detach() > 1).float() * inputs.response_mask
    return LossOutput(surrogate(inputs).terms, {"share": Mean(share.sum(), inputs.response_mask.sum())})


@pytest.mark.parametrize("loss", [surrogate, stop_gradient, under_no_grad, sequence, detaches_a_metric])
def test_right_losses_pass(failures: Any, loss: Any) -> None:
    assert failures("policy_losses", loss) == {}


def test_a_constant_may_be_a_metric(outcomes: Any) -> None:
    assert outcomes("policy_losses", a_constant_as_a_metric, only="metrics_add_up")["metrics_add_up"].status == "ok"


def test_the_gradient_of_a_loss_that_stops_none_is_compared_with_differences(outcomes: Any) -> None:
    def status(loss: Any) -> str:
        (result,) = outcomes("policy_losses", loss, only="gradient_matches_differences").values()
        return f"{result.status} {result.reason}".strip()

    assert status(surrogate) == "ok"
    assert status(sequence) == "ok"
    assert status(detaches_a_metric) == "ok"
    assert status(stop_gradient) == "skipped it stops gradients (detach), so its gradient is not that of its value"
    assert status(under_no_grad) == "skipped it stops gradients (no_grad), so its gradient is not that of its value"


def micro_batch_mean(inputs: PolicyLossInputs) -> LossOutput:
    terms = surrogate(inputs).terms
    return LossOutput(terms / inputs.response_mask.sum().clamp(min=1))


def row_mean_of_the_batch(inputs: PolicyLossInputs) -> LossOutput:
    mean = torch.where(inputs.response_mask, inputs.advantages, 0.0).mean()
    return LossOutput(-(inputs.advantages - mean) * ratio(inputs))


def one_number(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms.sum())


def only_the_terms(inputs: PolicyLossInputs) -> Any:
    return surrogate(inputs).terms


def always_float64(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms.double())


def without_clamp(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * (inputs.log_probs - inputs.old_log_probs).exp())


def wrong_sign(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(inputs.advantages * ratio(inputs))


def ignores_negative_advantages(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages.clamp(min=0) * ratio(inputs))


def no_gradient(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(-inputs.advantages * ratio(inputs).detach())


def sums_padding(inputs: PolicyLossInputs) -> LossOutput:
    mean = (inputs.log_probs - inputs.old_log_probs).mean(dim=1, keepdim=True)
    return LossOutput(-inputs.advantages * mean.clamp(-20, 20).exp().expand_as(inputs.advantages))


def nan_of_an_empty_row(inputs: PolicyLossInputs) -> LossOutput:
    mask = inputs.response_mask
    difference = ((inputs.log_probs - inputs.old_log_probs) * mask).sum(dim=1, keepdim=True)
    mean = difference.clamp(-20, 20) / mask.sum(dim=1, keepdim=True)
    return LossOutput(-inputs.advantages * mean.exp().expand_as(inputs.advantages))


def modifies_its_input(inputs: PolicyLossInputs) -> LossOutput:
    terms = surrogate(inputs).terms
    inputs.advantages.clamp_(min=0)
    return LossOutput(terms)


def random_dropout(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms * (torch.rand(inputs.advantages.shape) < 0.5))


def first_row_is_special(inputs: PolicyLossInputs) -> LossOutput:
    terms = surrogate(inputs).terms
    return LossOutput(torch.cat([2 * terms[:1], terms[1:]]))


def loops_over_rows(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(torch.stack([row * 1.0 for row in surrogate(inputs).terms]))


def mean_as_a_metric(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms, {"ratio": Mean(ratio(inputs).detach().mean(), 1)})


def a_constant_as_a_metric(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms, {"scale": Mean(0.75, 1.0)})


def a_number_as_a_metric(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(surrogate(inputs).terms, {"ratio": 1.0})  # type: ignore[dict-item]


def a_metric_with_its_graph(inputs: PolicyLossInputs) -> LossOutput:
    mask = inputs.response_mask
    return LossOutput(surrogate(inputs).terms, {"ratio": Mean(ratio(inputs)[mask].sum(), mask.sum())})


class Doubled(torch.autograd.Function):
    """The wrong backward pass of a hand-written operation."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


def wrong_backward(inputs: PolicyLossInputs) -> LossOutput:
    return LossOutput(Doubled.apply(surrogate(inputs).terms))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("loss", "check", "message"),
    [
        (micro_batch_mean, "rows_are_independent", "a mean over the micro-batch is the usual cause"),
        (micro_batch_mean, "gradient_invariant_token_mean", "cut into 2 micro-batches, with token-mean in float32"),
        (
            micro_batch_mean,
            "gradient_invariant_with_kl_entropy_and_weights",
            "a loss that averages over the micro-batch",
        ),
        (row_mean_of_the_batch, "gradient_invariant_seq_mean_token_sum_norm", "(relative) when it is cut into"),
        (one_number, "shape_and_dtype", "the terms have the shape () where (6, 8) is right"),
        (only_the_terms, "shape_and_dtype", "it returns Tensor, not LossOutput"),
        (always_float64, "shape_and_dtype", "the terms are torch.float64 where the inputs are torch.float32"),
        (without_clamp, "finite_at_extreme_ratios", "at a log-ratio of 10000 with advantage 1 the terms hold -inf"),
        (
            wrong_sign,
            "gradient_follows_the_advantage",
            "the loss rises with log pi of a token whose advantage is positive",
        ),
        (ignores_negative_advantages, "gradient_follows_the_advantage", "a negative advantage get no gradient"),
        (no_gradient, "gradient_follows_the_advantage", "its terms do not depend on log_probs: they carry no gradient"),
        (sums_padding, "invariant_to_padding", "with five columns of padding"),
        (sums_padding, "masked_tokens_do_not_count", "the loss changes with other numbers at masked tokens"),
        (nan_of_an_empty_row, "masked_tokens_do_not_count", "masked tokens get the gradient nan"),
        (modifies_its_input, "inputs_untouched", "it modifies its input advantages"),
        (random_dropout, "deterministic", "two calls with the same inputs give different terms"),
        (first_row_is_special, "invariant_to_row_order", "with the order of the rows"),
        (loops_over_rows, "vectorised", "it loops in Python"),
        (mean_as_a_metric, "metrics_add_up", "added up over micro-batches: its total must be a sum"),
        (a_number_as_a_metric, "metrics_add_up", "the metric ratio is float, not Mean(total, count)"),
        (a_metric_with_its_graph, "metrics_add_up", "the metric ratio carries the gradient"),
        (wrong_backward, "gradient_matches_differences", "the gradient differs from central differences of the loss"),
    ],
)
def test_a_wrong_loss_is_caught(failures: Any, loss: Any, check: str, message: str) -> None:
    assert message in failures("policy_losses", loss, only=check)[check]


def masked_by_selection(inputs: PolicyLossInputs) -> LossOutput:
    assert inputs.selected is not None
    return LossOutput(torch.where(inputs.selected, 0.0, surrogate(inputs).terms))


def a_third(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return inputs.response_mask & (uniforms < 0.3)


def own_randomness(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return torch.rand(uniforms.shape) < 0.5


def first_rows(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return (torch.arange(len(uniforms)) < 2)[:, None].expand(uniforms.shape)


def one_flag_a_row(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return uniforms[:, 0] < 0.3


def loops_over_rows_to_select(inputs: PolicyLossInputs, uniforms: Tensor) -> Tensor:
    return torch.stack([row < 0.3 for row in uniforms])


def test_a_right_selector_passes(failures: Any) -> None:
    assert failures("policy_losses", masked_by_selection, select_tokens=a_third) == {}


@pytest.mark.parametrize(
    ("select", "check", "message"),
    [
        (own_randomness, "selector_is_pure", "the uniforms are the only randomness that a selector may use"),
        (first_rows, "selector_is_pure", "the selected tokens change with the order of the rows"),
        (loops_over_rows_to_select, "selector_vectorised", "it loops in Python"),
        (one_flag_a_row, "selector_shape", "the selected tokens have the shape (6,) where (6, 8) is right"),
    ],
)
def test_a_wrong_selector_is_caught(failures: Any, select: Any, check: str, message: str) -> None:
    assert message in failures("policy_losses", masked_by_selection, select_tokens=select)[check]


def test_reference_log_probs_are_given_when_they_are_declared(failures: Any) -> None:
    def towards_a_teacher(inputs: PolicyLossInputs) -> LossOutput:
        assert inputs.ref_log_probs is not None
        advantages = inputs.advantages - (inputs.log_probs - inputs.ref_log_probs).detach()
        return LossOutput(-advantages * ratio(inputs))

    def distils(inputs: PolicyLossInputs) -> LossOutput:
        assert inputs.ref_log_probs is not None
        return LossOutput((inputs.log_probs - inputs.ref_log_probs).detach() * ratio(inputs))

    def away_from_the_teacher(inputs: PolicyLossInputs) -> LossOutput:
        return LossOutput(-distils(inputs).terms)

    assert failures("policy_losses", towards_a_teacher, needs_ref=True) == {}
    assert failures("policy_losses", distils, needs_ref=True) == {}
    assert set(failures("policy_losses", away_from_the_teacher, needs_ref=True)) == {"gradient_follows_the_advantage"}
    assert "it raised AssertionError" in failures("policy_losses", towards_a_teacher)["shape_and_dtype"]
