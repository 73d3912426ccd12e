"""Checks shared by policy losses and value losses: terms depend on their own row, and gradients are right."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.losses import LossOutput, Mean, add_means
from corerl.objective import loss_weights
from corerl.registry import Selected
from corerl_testing.differences import gradient_of_the_value
from corerl_testing.results import CheckFailed, Run
from corerl_testing.state import expect_precision, expect_the_same_elsewhere
from corerl_testing.tensors import (
    expect,
    expect_equal,
    expect_finite,
    expect_on_cuda,
    expect_shape,
    expect_untouched,
    expect_vectorised,
    generator,
    in_both_dtypes,
    on_cuda,
    scattered,
    spread_out,
    tensors_of,
)


@dataclass(frozen=True)
class Case:
    """A loss with inputs.

    Attributes:
        loss: the loss with bound options.
        inputs: PolicyLossInputs or ValueLossInputs.
        moving: the input that carries the gradient.
    """

    loss: Callable[[Any], LossOutput]
    inputs: Any
    moving: str

    @property
    def mask(self) -> Tensor:
        mask: Tensor = self.inputs.response_mask
        return mask

    def given(self, **tensors: Tensor) -> "Case":
        """The case with other tensors."""
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, **tensors))

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Case":
        """The case with every (b, T) tensor changed in the same way."""
        return self.given(**{name: change(tensor) for name, tensor in tensors_of(self.inputs).items()})

    def filled(self, names: Iterable[str], change: Callable[[Tensor], Tensor]) -> "Case":
        """The case with the values outside the mask changed in the named tensors."""
        given = {name: getattr(self.inputs, name) for name in names}
        return self.given(**{name: torch.where(self.mask, each, change(each)) for name, each in given.items()})

    def differentiable(self) -> "Case":
        """The case with a leaf that requires its gradient as ``moving``."""
        return self.given(**{self.moving: getattr(self.inputs, self.moving).detach().clone().requires_grad_()})

    def output(self) -> LossOutput:
        return self.loss(self.inputs)

    def terms(self) -> Tensor:
        """(b, T), 0 outside the mask."""
        return torch.where(self.mask, self.output().terms, 0.0)

    def gradient(self) -> tuple[Tensor, Tensor]:
        """The token-mean loss, and its gradient (b, T)."""
        case = self.differentiable()
        leaf = getattr(case.inputs, self.moving)
        loss = case.total()
        if not loss.requires_grad:
            raise CheckFailed(f"its terms do not depend on {self.moving}: they carry no gradient")
        (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        return loss.detach(), torch.zeros_like(leaf) if gradient is None else gradient

    def total(self) -> Tensor:
        """The token-mean loss."""
        terms = self.output().terms
        return torch.where(self.mask, terms * loss_weights(self.mask, "token-mean").to(terms.dtype), 0.0).sum()


Make = Callable[..., Case]
"""``make(dtype, rows=…, width=…)`` gives a seeded case."""


def checks(selected: Selected[Any], make: Make) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for name, check in _CHECKS.items():
        yield name, partial(in_both_dtypes, check, make)
    differences = partial(in_both_dtypes, _gradient_matches_differences, make, (torch.float64,))
    yield "gradient_matches_differences", differences
    yield "vectorised", partial(_vectorised, make)
    yield "same_in_a_fresh_process", partial(_same_in_a_fresh_process, selected, make)


def _shape_and_dtype(case: Case) -> None:
    output = case.output()
    expect(isinstance(output, LossOutput), f"it returns {type(output).__name__}, not LossOutput")
    expect_shape("the terms", output.terms, tuple(case.mask.shape), getattr(case.inputs, case.moving).dtype)
    expect_finite("the terms", case.terms())


def _inputs_untouched(case: Case) -> None:
    expect_untouched(case.inputs, case.output)


def _deterministic(case: Case) -> None:
    expect(torch.equal(case.terms(), case.terms()), "two calls with the same inputs give different terms")


def _same_on_cuda(case: Case) -> None:
    moved = dataclasses.replace(case, inputs=on_cuda(case.inputs))
    expect_on_cuda("the terms", moved.terms(), case.terms())
    expect_on_cuda("the gradients", moved.gradient()[1], case.gradient()[1])


def _part(case: Case, rows: Tensor) -> Case:
    return case.changed(lambda each: each[rows])


def _rows_independent(case: Case) -> None:
    alone = torch.cat([_part(case, torch.tensor([row])).terms() for row in range(len(case.mask))])
    expect_equal(
        "the terms",
        alone,
        case.terms(),
        "with the rows that stand beside a response: a mean over the micro-batch is the usual cause, and the "
        "aggregation is CoreRL's",
    )


def _padding(case: Case) -> None:
    width = case.mask.shape[1]
    wide = case.changed(lambda each: torch.nn.functional.pad(each, (0, 5)))
    expect_equal("the terms", wide.terms()[:, :width], case.terms(), "with five columns of padding")


def _masked_tokens_between(case: Case) -> None:
    for what, places in spread_out(case.mask).items():
        apart = case.changed(lambda each, places=places: scattered(each, places))  # type: ignore[misc]
        expect_equal(
            "the terms", apart.terms().gather(1, places), case.terms(), f"with masked tokens {what} between the others"
        )


def _row_order(case: Case) -> None:
    order = torch.randperm(len(case.mask), generator=generator(1))
    expect_equal(
        "the terms", case.changed(lambda each: each[order]).terms(), case.terms()[order], "with the order of the rows"
    )


def _masked_tokens(case: Case) -> None:
    """Numbers at masked tokens change nothing and get no gradient; a NaN computed there has no effect elsewhere."""
    random = generator(4)
    loss, gradient = case.gradient()
    numbers = [name for name, tensor in tensors_of(case.inputs).items() if tensor.is_floating_point()]
    other = case.filled(numbers, lambda each: torch.rand(each.shape, generator=random).to(each.dtype) * -1e4)
    nan = case.filled([case.moving], lambda each: torch.full_like(each, torch.nan))
    for what, filled in (("other numbers", other), ("NaN", nan)):
        filled_loss, filled_gradient = filled.gradient()
        expect_same(loss, filled_loss, f"the loss changes with {what} at masked tokens")
        inside = filled_gradient[case.mask]
        expect_same(gradient[case.mask], inside, f"the gradient changes with {what} at masked tokens")
        if filled is other:
            strays = filled_gradient[~case.mask & (filled_gradient != 0)]
            expect(not len(strays), f"masked tokens get the gradient {float(strays[0]) if len(strays) else 0:.3g}")


def expect_same(want: Tensor, got: Tensor, message: str) -> None:
    """Raise CheckFailed if ``got`` is not finite or differs from ``want``."""
    same = bool(torch.isfinite(got).all()) and torch.allclose(got, want, rtol=1e-5, atol=1e-9)
    expect(same, message)


def _empty_rows(case: Case) -> None:
    """Additional rows without a trained token: the padding of a micro-batch."""
    rows = len(case.mask)
    more = case.changed(lambda each: torch.nn.functional.pad(each, (0, 0, 0, 2)))
    when = "with two rows without a trained token beside the others"
    expect_equal("the terms", more.terms()[:rows], case.terms(), when)
    _expect_same_metrics(case, more, when)


def _metrics_of_trained_tokens(case: Case) -> None:
    wide = case.changed(lambda each: torch.nn.functional.pad(each, (0, 5)))
    _expect_same_metrics(case, wide, "with five columns of padding")
    numbers = [name for name, tensor in tensors_of(case.inputs).items() if tensor.is_floating_point()]
    filled = case.filled(numbers, lambda each: each - 3 * torch.rand(each.shape, generator=generator(5)).to(each.dtype))
    _expect_same_metrics(case, filled, "with other numbers at masked tokens")


def _expect_same_metrics(case: Case, other: Case, when: str) -> None:
    metrics, others = case.output().metrics, other.output().metrics
    for name, mean in metrics.items():
        now = others.get(name, Mean(0.0, 0.0))
        for number, before, after in (("total", mean.total, now.total), ("count", mean.count, now.count)):
            expect(
                abs(float(after) - float(before)) <= 1e-5 * max(1.0, abs(float(before))),
                f"the {number} of the metric {name} changes from {float(before):.6g} to {float(after):.6g} {when}: "
                "a metric is of trained tokens alone",
            )


def _precision(case: Case) -> None:
    expect_precision(lambda: case.gradient(), getattr(case.inputs, case.moving).dtype)


def _metrics_add_up(case: Case) -> None:
    whole = case.differentiable().output().metrics
    parts: dict[str, Mean] = {}
    for rows in ([0], [1, 2], list(range(3, len(case.mask)))):
        add_means(parts, _part(case, torch.tensor(rows)).output().metrics)
    for name, mean in whole.items():
        expect(isinstance(mean, Mean), f"the metric {name} is {type(mean).__name__}, not Mean(total, count)")
        for number in (mean.total, mean.count):
            expect(not (isinstance(number, Tensor) and number.requires_grad), f"the metric {name} carries the gradient")
        value, added = mean.value, parts.get(name, Mean(0.0, 0.0)).value
        expect(
            abs(value - added) <= 1e-5 * max(1.0, abs(value)),
            f"the metric {name} is {value:.6g}, and {added:.6g} added up over micro-batches: its total must be a sum, "
            "and its count what the sum is over",
        )


def _gradient_matches_differences(case: Case) -> None:
    """Compare with the gradient of the loss, with stopped tensors held at their values."""

    def total(point: Tensor) -> Tensor:
        return case.given(**{case.moving: point}).total()

    gradient_of_the_value(total, getattr(case.inputs, case.moving), case.mask)


def _same_in_a_fresh_process(selected: Selected[Any], make: Make) -> None:
    """The second of two batches of one shape, as the first call of a fresh process."""
    case = make(torch.float32, rows=7, width=11)
    earlier = case.changed(lambda each: each.flip(0) if each.dtype is torch.bool else each.flip(0) * 0.5)
    expect_the_same_elsewhere(selected, (earlier.inputs,), (case.inputs,))


def _vectorised(make: Make) -> None:
    def responses(rows: int) -> Callable[[], object]:
        return make(torch.float32, rows=rows).output

    def tokens(width: int) -> Callable[[], object]:
        return make(torch.float32, width=width).output

    expect_vectorised(responses, "responses")
    expect_vectorised(tokens, "tokens")


_CHECKS: dict[str, Callable[[Case], None]] = {
    "shape_and_dtype": _shape_and_dtype,
    "inputs_untouched": _inputs_untouched,
    "deterministic": _deterministic,
    "keeps_precision": _precision,
    "same_on_cuda": _same_on_cuda,
    "rows_are_independent": _rows_independent,
    "invariant_to_padding": _padding,
    "invariant_to_masked_tokens": _masked_tokens_between,
    "invariant_to_row_order": _row_order,
    "masked_tokens_do_not_count": _masked_tokens,
    "empty_rows_do_not_count": _empty_rows,
    "metrics_add_up": _metrics_add_up,
    "metrics_are_of_trained_tokens": _metrics_of_trained_tokens,
}
