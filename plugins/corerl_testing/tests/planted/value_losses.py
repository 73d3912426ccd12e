"""Wrong value losses."""

from typing import Any

import torch

from corerl.contracts.losses import masked_mean
from corerl.contracts.value_losses import LossOutput, Mean, ValueLossInputs
from planted.fault import Fault
from planted.losses import doubled_backward, remembered_scale

WIDTH = 0.5


def squared(inputs: ValueLossInputs) -> LossOutput:
    """Half the squared error, and the mean error."""
    error = inputs.values - inputs.returns
    return LossOutput(error**2 / 2, {"error": masked_mean(error.detach().abs(), inputs.response_mask)})


def clipped(inputs: ValueLossInputs) -> LossOutput:
    """The larger of the errors of the value and of the value held near its old one."""
    near = inputs.old_values + (inputs.values - inputs.old_values).clamp(-WIDTH, WIDTH)
    return LossOutput(torch.maximum((inputs.values - inputs.returns) ** 2, (near - inputs.returns) ** 2) / 2)


def smaller_of_the_errors(inputs: ValueLossInputs) -> LossOutput:
    near = inputs.old_values + (inputs.values - inputs.old_values).clamp(-WIDTH, WIDTH)
    return LossOutput(torch.minimum((inputs.values - inputs.returns) ** 2, (near - inputs.returns) ** 2) / 2)


def micro_batch_mean(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms / inputs.response_mask.sum())


def one_number_a_row(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms.sum(dim=1))


def away_from_the_return(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(-squared(inputs).terms)


def towards_the_old_value(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput((inputs.values - inputs.old_values) ** 2)


def returns_with_a_margin(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput((inputs.values - 1.05 * inputs.returns) ** 2)


def kink_at_the_old_value(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms + 0.01 * (inputs.values - inputs.old_values).abs())


def hyperbolic(inputs: ValueLossInputs) -> LossOutput:
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


def in_16_bits(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(((inputs.values - inputs.returns).bfloat16() ** 2).to(inputs.values.dtype))


def remembers_a_scale(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms / remembered_scale(inputs.returns))


def drops_tokens_at_random(inputs: ValueLossInputs) -> LossOutput:
    terms = squared(inputs).terms
    return LossOutput(terms * (torch.rand(terms.shape) < 0.9))


def mean_over_the_width(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms / inputs.values.shape[1])


def first_row_counts_twice(inputs: ValueLossInputs) -> LossOutput:
    weights = 1 + (torch.arange(len(inputs.values)) == 0).to(inputs.values.dtype)
    return LossOutput(squared(inputs).terms * weights[:, None])


def weighed_by_column(inputs: ValueLossInputs) -> LossOutput:
    weights = 1 / (1 + torch.arange(inputs.values.shape[1], dtype=inputs.values.dtype))
    return LossOutput(squared(inputs).terms * weights)


def metric_of_empty_rows(inputs: ValueLossInputs) -> LossOutput:
    errors = torch.where(inputs.response_mask, inputs.values.detach() - inputs.returns, 0.0).abs().sum(dim=1)
    return LossOutput(squared(inputs).terms, {"error_of_rows": Mean(errors.sum(), len(errors))})


def deviation_as_a_metric(inputs: ValueLossInputs) -> LossOutput:
    return LossOutput(squared(inputs).terms, {"spread": Mean(inputs.returns.std(), 1)})


def metric_of_padding(inputs: ValueLossInputs) -> LossOutput:
    error = (inputs.values.detach() - inputs.returns).abs()
    return LossOutput(squared(inputs).terms, {"error": Mean(error.sum(), error.numel())})


def wrong_backward_beside_detach(inputs: ValueLossInputs) -> LossOutput:
    weights = (inputs.values.detach() - inputs.old_values).abs() + 1
    return LossOutput(doubled_backward(weights * squared(inputs).terms))


def _fault(wrong: Any, flaw: str, check: str, reason: str, right: Any = squared) -> Fault:
    return Fault("value_losses", wrong.__name__, flaw, wrong, right, check, reason)


FAULTS = [
    _fault(
        micro_batch_mean,
        "terms are divided by the tokens of the micro-batch",
        "rows_are_independent",
        "a mean over the micro-batch is the usual cause",
    ),
    _fault(
        one_number_a_row,
        "there is a term for each row",
        "shape_and_dtype",
        "the terms have the shape (6,) where (6, 8) is right",
    ),
    _fault(
        away_from_the_return,
        "the error is maximised",
        "gradient_leads_to_the_return",
        "the gradient leads away from the return",
    ),
    _fault(
        towards_the_old_value, "the target is the old value", "gradient_leads_to_the_return", "there is no gradient"
    ),
    _fault(
        smaller_of_the_errors,
        "of the two errors the smaller one counts",
        "brings_back_what_moved_away",
        "further from the return than its old one is not pulled back",
        clipped,
    ),
    _fault(
        returns_with_a_margin,
        "the target is 5% further from 0 than the return",
        "at_rest_at_the_return",
        "it has another target",
    ),
    _fault(
        kink_at_the_old_value,
        "a penalty has a kink at the old value",
        "unchanged_by_rounding",
        "noise of 1e-7 in old values changes the first update by",
        clipped,
    ),
    _fault(hyperbolic, "a large error overflows", "finite_at_extreme_values", "at a value of 1e+06 the terms hold inf"),
    _fault(
        normalised_by_the_row,
        "masked values are a divisor",
        "masked_tokens_do_not_count",
        "the loss changes with other numbers at masked tokens",
    ),
    _fault(modifies_its_input, "the returns are cleared in place", "inputs_untouched", "it modifies its input returns"),
    _fault(loops_over_tokens, "there is a loop over tokens", "vectorised", "it loops in Python"),
    _fault(in_16_bits, "errors are rounded to bfloat16", "keeps_precision", "it computes in bfloat16 inside"),
    _fault(
        remembers_a_scale,
        "the scale of the first batch of each shape is kept",
        "same_in_a_fresh_process",
        "it remembers earlier calls",
    ),
    _fault(
        drops_tokens_at_random,
        "tokens are dropped at random",
        "deterministic",
        "two calls with the same inputs give different terms",
    ),
    _fault(
        mean_over_the_width,
        "terms are divided by the padded width",
        "invariant_to_padding",
        "with five columns of padding",
    ),
    _fault(
        first_row_counts_twice, "the first row counts twice", "invariant_to_row_order", "with the order of the rows"
    ),
    _fault(
        weighed_by_column,
        "the weight of a token falls with its column, masked ones counted",
        "invariant_to_masked_tokens",
        "between the others",
    ),
    _fault(
        metric_of_empty_rows,
        "rows without a trained token count in a metric",
        "empty_rows_do_not_count",
        "of the metric error_of_rows changes",
    ),
    _fault(
        deviation_as_a_metric,
        "a metric is a deviation",
        "metrics_add_up",
        "added up over micro-batches: its total must be a sum",
    ),
    _fault(
        metric_of_padding,
        "the count of a metric is that of all places",
        "metrics_are_of_trained_tokens",
        "of the metric error changes",
    ),
    _fault(
        wrong_backward_beside_detach,
        "a hand-written backward is twice too large, beside a detach that is meant",
        "gradient_matches_differences",
        "the backward of its torch.autograd.Function is wrong",
    ),
]
