"""Checks of policy losses: the contract of :mod:`corerl.contracts.policy_losses`."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.policy_losses import PolicyLoss, PolicyLossInputs
from corerl.registry import Selected
from corerl_testing import invariance, losses, rounding
from corerl_testing.enumerable import claims
from corerl_testing.losses import Case
from corerl_testing.results import Run, skipping
from corerl_testing.tensors import (
    DTYPES,
    expect,
    expect_finite,
    expect_shape,
    expect_untouched,
    expect_vectorised,
    generator,
    in_both_dtypes,
    response_mask,
)

ROWS, WIDTH = 6, 8


def checks(selected: Selected[PolicyLoss]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    if selected.entry.facts.of_logits is not None:
        yield "terms", skipping("its terms are of the results of its of_logits, which this kit does not know")
        yield from claims.loss_checks(selected)
        return
    make = partial(example, selected)
    yield from losses.checks(selected, make)
    yield "finite_at_extreme_ratios", partial(in_both_dtypes, _finite_at_extreme_ratios, make)
    yield "gradient_follows_the_advantage", partial(in_both_dtypes, _gradient_follows_the_advantage, make)
    yield "gradient_grows_with_the_advantage", partial(in_both_dtypes, _gradient_grows_with_the_advantage, make)
    yield "brings_back_what_moved_away", partial(in_both_dtypes, _brings_back_what_moved_away, make)
    yield "unchanged_by_rounding", partial(rounding.policy_loss, selected)
    has_one = selected.entry.facts.select_tokens is not None
    for name, check in _SELECTOR_CHECKS.items():
        yield name, partial(check, selected) if has_one else skipping("it declares no select_tokens")
    exact = selected.entry.facts.zero_at_zero_advantage
    yield (
        "zero_at_zero_advantage",
        partial(in_both_dtypes, _zero_at_zero_advantage, make)
        if exact
        else skipping("it declares no zero_at_zero_advantage"),
    )
    yield from invariance.checks(selected)
    yield from claims.loss_checks(selected)


def example(selected: Selected[PolicyLoss], dtype: torch.dtype, *, rows: int = ROWS, width: int = WIDTH) -> Case:
    """Seeded inputs with all declared needs of the entry; odd rows are nearly on-policy."""
    random = generator(5)
    mask = response_mask(rows, width, random)

    def noise(scale: Tensor | float) -> Tensor:
        return scale * torch.randn(rows, width, generator=random, dtype=torch.float64)

    old = -2 * torch.rand(rows, width, generator=random, dtype=torch.float64) - 1.5
    scale = torch.where(torch.arange(rows) % 2 == 0, 0.3, 1e-4)[:, None]
    numbers = {
        "log_probs": old + noise(scale),
        "old_log_probs": old,
        "advantages": noise(0.1) + noise(1.0)[:, :1],
        "rollout_log_probs": old + noise(0.01),
    }
    if "ref" in selected.entry.needs:
        numbers["ref_log_probs"] = old + noise(0.2)
    columns: dict[str, Any] = {name: torch.where(mask, each, 0.0).to(dtype) for name, each in numbers.items()}
    inputs = PolicyLossInputs(response_mask=mask, **columns)
    return with_selection(selected, Case(selected.load(), inputs, "log_probs"))


def with_selection(selected: Selected[PolicyLoss], case: Case) -> Case:
    """The case with the tokens chosen by the entry's selector, if it has one."""
    select = selected.load_fact("select_tokens")
    return case if select is None else case.given(selected=select(case.inputs, _uniforms(case.mask)))


def _uniforms(mask: Tensor) -> Tensor:
    return torch.rand(mask.shape, generator=generator(6), dtype=torch.float64)


def _finite_at_extreme_ratios(case: Case) -> None:
    mask = case.mask
    for ratio in (50.0, -50.0, 1e4, -1e4):
        for sign in (1.0, -1.0):
            low, high = torch.full_like(case.inputs.log_probs, -abs(ratio)), torch.zeros_like(case.inputs.log_probs)
            new, old = (high, low) if ratio > 0 else (low, high)
            advantages = torch.where(mask, sign, 0.0).to(new.dtype)
            extreme = case.given(
                log_probs=torch.where(mask, new, 0.0),
                old_log_probs=torch.where(mask, old, 0.0),
                advantages=advantages,
                rollout_log_probs=torch.where(mask, old, 0.0),
            )
            where = f"at a log-ratio of {ratio:g} with advantage {sign:g}"
            expect_finite(f"{where} the terms", extreme.terms())
            expect_finite(f"{where} the gradients", extreme.gradient()[1])


def _on_policy(case: Case, advantages: Tensor) -> Case:
    """The case with equal policies, including the reference model, if there is one."""
    old = case.inputs.old_log_probs
    given = case.given(log_probs=old, rollout_log_probs=old, advantages=advantages)
    return given if case.inputs.ref_log_probs is None else given.given(ref_log_probs=old)


def _gradient_follows_the_advantage(case: Case) -> None:
    """On-policy the gradient is -A times a non-negative factor.

    A loss that learns only from the reference model has no gradient if both agree. For such a loss the reference takes
    the role of the advantage: it gives half of the tokens a larger probability, and the others a smaller one.
    """
    mask, old = case.mask, case.inputs.old_log_probs
    signs = torch.where(torch.arange(len(mask)) % 2 == 0, 1.0, -1.0)[:, None].to(old.dtype).expand_as(old) * mask
    on_policy = _on_policy(case, signs)
    _, gradient = on_policy.gradient()
    if case.inputs.ref_log_probs is not None and not gradient.any():
        _, gradient = on_policy.given(ref_log_probs=old + signs).gradient()
    expect(
        bool((gradient * signs <= 0).all()),
        "where the policy is still the old one, the loss rises with log pi of a token whose advantage is positive, or "
        "falls with that of one whose advantage is negative",
    )
    for sign, what in ((1, "positive"), (-1, "negative")):
        expect(gradient[signs == sign].any(), f"on-policy, tokens with a {what} advantage get no gradient")


def _gradient_grows_with_the_advantage(case: Case) -> None:
    """On-policy: no gradient without an advantage, and a larger gradient for a larger advantage."""
    mask = case.mask
    for sign in (1.0, -1.0):
        sizes = [
            _on_policy(case, torch.where(mask, sign * size, 0.0).to(case.inputs.log_probs.dtype)).gradient()[1].abs()
            for size in (0.0, 0.5, 1.0, 2.0)
        ]
        if case.inputs.ref_log_probs is not None and not sizes[-1].any():
            return  # it learns from the reference model alone
        largest = float(sizes[0].max())
        expect(
            largest <= 1e-6 or case.inputs.ref_log_probs is not None,
            f"on-policy, tokens whose advantage is 0 get the gradient {largest:.3g}: an entropy bonus or a KL term "
            "belongs to the objective, not to the loss",
        )
        for smaller, larger in itertools.pairwise(sizes):
            expect(
                bool((larger >= smaller - 1e-7).all()) and float(larger.sum()) > float(smaller.sum()) * 1.01,
                f"on-policy, the gradient of a token does not grow with a {'positive' if sign > 0 else 'negative'} "
                f"advantage: {float(smaller.sum()):.4g} in all with one, {float(larger.sum()):.4g} with a larger one",
            )


def _zero_at_zero_advantage(case: Case) -> None:
    """Rows without an advantage, beside rows with one: `actor.zero_advantage: skip` leaves them out."""
    without = (torch.arange(len(case.mask)) % 2 == 0)[:, None] & case.mask
    given = case.given(advantages=case.inputs.advantages.masked_fill(without, 0.0))
    for what, numbers in (("term", given.terms()), ("gradient", given.gradient()[1])):
        largest = float(numbers[without].detach().abs().max())
        expect(not largest, f"a row whose advantages are all 0 has a {what} of {largest:.3g}")


def _brings_back_what_moved_away(case: Case) -> None:
    """A token that moved against its advantage keeps its gradient; a clip stops only tokens that moved with it.

    Tokens that a selector leaves without a gradient on-policy are not checked.
    """
    mask, old = case.mask, case.inputs.old_log_probs
    for sign in (1.0, -1.0):
        case_of_sign = _on_policy(case, torch.where(mask, sign, 0.0).to(old.dtype))
        moved = case_of_sign.given(log_probs=torch.where(mask, old - 0.5 * sign, 0.0))
        _, gradient = moved.gradient()
        if case.inputs.ref_log_probs is not None and not gradient.any():
            return  # it learns from the reference model alone
        learns = mask & (case_of_sign.gradient()[1] != 0)
        kept = (gradient * sign < 0)[learns]
        expect(
            2 * int(kept.sum()) > len(kept) or not len(kept),
            f"of {len(kept)} tokens whose log-ratio is {-0.5 * sign:g} and whose advantage is {sign:g} only "
            f"{int(kept.sum())} are led back: a clip must hold those that moved with their advantage alone",
        )


def _selection(selected: Selected[PolicyLoss], inputs: PolicyLossInputs, uniforms: Tensor) -> Any:
    select = selected.load_fact("select_tokens")
    assert select is not None
    return select(inputs, uniforms)


def _selector_shape(selected: Selected[PolicyLoss]) -> None:
    for dtype in DTYPES:
        case = example(selected, dtype)
        choice = _selection(selected, case.inputs, _uniforms(case.mask))
        expect_shape("the selected tokens", choice, tuple(case.mask.shape), torch.bool)


def _selector_is_pure(selected: Selected[PolicyLoss]) -> None:
    """The choice depends only on the inputs and the uniforms: not on earlier calls or the order of the rows."""
    case = example(selected, torch.float64)
    uniforms = _uniforms(case.mask)
    choice = _selection(selected, case.inputs, uniforms)
    expect_untouched(case.inputs, lambda: _selection(selected, case.inputs, uniforms))
    expect(
        torch.equal(choice, _selection(selected, case.inputs, uniforms)),
        "two calls select different tokens: the uniforms are the only randomness that a selector may use",
    )
    order = torch.randperm(len(choice), generator=generator(1))
    moved = _selection(selected, case.changed(lambda each: each[order]).inputs, uniforms[order])
    expect(torch.equal(moved, choice[order]), "the selected tokens change with the order of the rows")
    width = case.mask.shape[1]
    wide = case.changed(lambda each: torch.nn.functional.pad(each, (0, 3)))
    padded = _selection(selected, wide.inputs, torch.nn.functional.pad(uniforms, (0, 3)))
    expect(torch.equal(padded[:, :width], choice), "the selected tokens change with columns of padding")


def _selector_vectorised(selected: Selected[PolicyLoss]) -> None:
    def call(**size: int) -> Callable[[], object]:
        case = example(selected, torch.float32, **size)
        return partial(_selection, selected, case.inputs, _uniforms(case.mask))

    expect_vectorised(lambda rows: call(rows=rows), "responses")
    expect_vectorised(lambda width: call(width=width), "tokens")


_SELECTOR_CHECKS = {
    "selector_shape": _selector_shape,
    "selector_is_pure": _selector_is_pure,
    "selector_vectorised": _selector_vectorised,
}
