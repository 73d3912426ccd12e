"""Checks of value losses: the contract of :mod:`corerl.registry.value_losses`."""

from collections.abc import Iterator
from functools import partial

import torch

from corerl.registry.base import Selected
from corerl.registry.value_losses import ValueLoss, ValueLossInputs
from corerl.testing import losses
from corerl.testing.losses import Case
from corerl.testing.results import Run
from corerl.testing.tensors import expect, expect_finite, generator, in_both_dtypes, response_mask


def checks(selected: Selected[ValueLoss]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    make = partial(example, selected)
    yield from losses.checks(make)
    yield "finite_at_extreme_values", partial(in_both_dtypes, _finite_at_extreme_values, make)
    yield "gradient_leads_to_the_return", partial(in_both_dtypes, _gradient_leads_to_the_return, make)


def example(selected: Selected[ValueLoss], dtype: torch.dtype, *, rows: int = 6, width: int = 8) -> Case:
    """Seeded inputs; in odd rows the values have hardly moved."""
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
    """Where the values are still the old ones, the loss falls as V moves towards R."""
    mask, old = case.mask, case.inputs.old_values
    _, gradient = case.given(values=old).gradient()
    push = gradient * (old - case.inputs.returns)
    expect(
        bool((push[mask] >= 0).all()),
        "where the values are still the old ones, the gradient leads away from the return",
    )
    expect(bool(gradient[mask].any()), "where the values are still the old ones, there is no gradient")
