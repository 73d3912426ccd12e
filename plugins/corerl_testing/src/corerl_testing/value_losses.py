"""Checks of value losses: the contract of :mod:`corerl.contracts.value_losses`."""

from collections.abc import Iterator
from functools import partial

import torch

from corerl.contracts.value_losses import ValueLoss, ValueLossInputs
from corerl.registry import Selected
from corerl_testing import losses
from corerl_testing.losses import Case
from corerl_testing.results import Run
from corerl_testing.tensors import expect, expect_finite, generator, in_both_dtypes, response_mask


def checks(selected: Selected[ValueLoss]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    make = partial(example, selected)
    yield from losses.checks(selected, make)
    yield "finite_at_extreme_values", partial(in_both_dtypes, _finite_at_extreme_values, make)
    yield "gradient_leads_to_the_return", partial(in_both_dtypes, _gradient_leads_to_the_return, make)
    yield "brings_back_what_moved_away", partial(in_both_dtypes, _brings_back_what_moved_away, make)
    yield "at_rest_at_the_return", partial(in_both_dtypes, _at_rest_at_the_return, make)
    yield "unchanged_by_rounding", partial(in_both_dtypes, _unchanged_by_rounding, make, (torch.float64,))


def example(selected: Selected[ValueLoss], dtype: torch.dtype, *, rows: int = 6, width: int = 8) -> Case:
    """Seeded inputs; in odd rows the values have hardly changed."""
    random = generator(7)
    mask = response_mask(rows, width, random)
    scale = torch.where(torch.arange(rows) % 2 == 0, 1.0, 1e-2)[:, None]
    old = torch.randn(rows, width, generator=random, dtype=torch.float64)
    numbers = {
        "values": old + scale * torch.randn(rows, width, generator=random, dtype=torch.float64),
        "old_values": old,
        "returns": torch.randn(rows, width, generator=random, dtype=torch.float64),
    }
    inputs = ValueLossInputs(
        response_mask=mask, **{name: torch.where(mask, each, 0.0).to(dtype) for name, each in numbers.items()}
    )
    return Case(selected.load(), inputs, "values")


def _finite_at_extreme_values(case: Case) -> None:
    for value in (1e6, -1e6):
        extreme = case.given(values=torch.where(case.mask, torch.full_like(case.inputs.values, value), 0.0))
        expect_finite(f"at a value of {value:g} the terms", extreme.terms())
        expect_finite(f"at a value of {value:g} the gradients", extreme.gradient()[1])


def _gradient_leads_to_the_return(case: Case) -> None:
    """If the values are still the old ones, the loss falls as V moves towards R."""
    mask, old = case.mask, case.inputs.old_values
    _, gradient = case.given(values=old).gradient()
    push = gradient * (old - case.inputs.returns)
    expect(
        bool((push[mask] >= 0).all()),
        "where the values are still the old ones, the gradient leads away from the return",
    )
    expect(bool(gradient[mask].any()), "where the values are still the old ones, there is no gradient")


def _brings_back_what_moved_away(case: Case) -> None:
    """A value that moved from its old value away from the return is pulled back, at any distance."""
    mask, old, returns = case.mask, case.inputs.old_values, case.inputs.returns
    away = torch.where(old >= returns, 1.0, -1.0).to(old.dtype)
    for distance in (0.1, 1.0, 10.0):
        _, gradient = case.given(values=torch.where(mask, old + distance * away, 0.0)).gradient()
        expect(
            bool((gradient * away > 0)[mask].all()),
            f"a value that is {distance:g} further from the return than its old one is not pulled back",
        )


def _at_rest_at_the_return(case: Case) -> None:
    """If old value, value and return are equal, the gradient is 0."""
    _, gradient = case.given(values=case.inputs.returns, old_values=case.inputs.returns).gradient()
    largest = float(gradient.abs().max())
    expect(largest <= 1e-6, f"where values are the returns the gradient is {largest:.3g}, not 0: it has another target")


def _unchanged_by_rounding(case: Case) -> None:
    """Values that differ from the old ones only by rounding get the same gradient."""
    old = case.inputs.old_values
    noise = 1e-7 * torch.randn(old.shape, generator=generator(9), dtype=torch.float64)
    _, want = case.given(values=old).gradient()
    _, got = case.given(values=old, old_values=old + noise * case.mask).gradient()
    change = float((got - want).norm() / want.norm())
    expect(
        change <= 1e-5,
        f"noise of 1e-7 in old values changes the first update by {change:.2g} (relative): the gradient has a step "
        "where the values are still the old ones",
    )
