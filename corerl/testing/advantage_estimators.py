"""Checks of advantage estimators: the contract of :mod:`corerl.registry.advantage_estimators`.

An estimator that declares ``needs_groups`` compares the responses of a group. Whether it also normalises over the batch
is no declared fact, so two rules stand for the isolation of groups. A constant added to all scores of one group at most
scales the others' advantages, all by one a > 0. Any other change of one group's scores changes the others' by one
common map a·A + b, a > 0.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corerl.registry.advantage_estimators import AdvantageEstimator, AdvantageInputs, Advantages
from corerl.registry.base import Entry, Selected
from corerl.testing.results import Run, skipping
from corerl.testing.tensors import (
    TOLERANCE,
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
    response_mask,
)

Estimate = Callable[[AdvantageInputs], Advantages]
GROUPS = (0, 1, 0, 2, 1, 3, 0, 2, 1, 2, 0, 4, 4)
"""Of the example's rows; row 5 is alone in its group, and row 2 has no score."""


def checks(selected: Selected[AdvantageEstimator]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for name, check in _CHECKS.items():
        yield name, partial(_in_both_dtypes, check, selected)
    for name, check in _GROUP_CHECKS.items():
        run = partial(_in_both_dtypes, check, selected)
        yield name, run if selected.entry.needs_groups else skipping("it declares no needs_groups")
    yield "vectorised", partial(_vectorised, selected)


def example(
    entry: Entry[Any], dtype: torch.dtype, *, groups: tuple[int, ...] = GROUPS, width: int = 7
) -> AdvantageInputs:
    """Seeded inputs with whatever the entry declares to need; scores lie in [0, 1], on the last trained token."""
    random = generator(0)
    rows = len(groups)
    mask = response_mask(rows, width, random)
    mask[:2, 0] = True
    per_token = 0.01 * torch.rand(rows, width, generator=random, dtype=torch.float64)
    scores = torch.rand(rows, 1, generator=random, dtype=torch.float64)
    rewards = torch.where(mask, per_token + _last(mask) * scores, 0.0)
    probabilities = 0.05 + 0.9 * torch.rand(rows, width, generator=random, dtype=torch.float64)
    others = torch.rand(rows, width, generator=random, dtype=torch.float64) * (1 - probabilities) ** 2
    scored = mask.any(dim=1)

    def of_rows() -> Tensor:
        return torch.where(scored, torch.rand(rows, generator=random, dtype=torch.float64), 0.0).to(dtype)

    return AdvantageInputs(
        rewards=rewards.to(dtype),
        response_mask=mask,
        group_ids=torch.tensor(groups),
        values=torch.randn(rows, width, generator=random, dtype=dtype) * mask if entry.needs_critic else None,
        greedy_scores=of_rows() if entry.needs_greedy_baseline else None,
        log_probs=probabilities.log().to(dtype),
        sum_pi_squared=(probabilities**2 + others).to(dtype) if entry.needs_sum_pi_squared else None,
        components={"accuracy": of_rows(), "format": of_rows()},
    )


def _in_both_dtypes(check: Callable[[Estimate, AdvantageInputs], None], selected: Selected[AdvantageEstimator]) -> None:
    in_both_dtypes(partial(check, selected.load()), partial(example, selected.entry))


def _last(mask: Tensor) -> Tensor:
    """(B, T) bool: the last trained token of each response."""
    steps = torch.arange(mask.shape[1])
    return torch.where(mask, steps, -1).max(dim=1, keepdim=True).values == steps


def _changed(inputs: AdvantageInputs, change: Callable[[Tensor], Tensor]) -> AdvantageInputs:
    """``inputs`` with every tensor of B rows changed in the same way."""
    given = {name: change(value) for name, value in vars(inputs).items() if isinstance(value, Tensor)}
    components = {name: change(value) for name, value in inputs.components.items()}
    return dataclasses.replace(inputs, components=components, **given)


def _rescored(inputs: AdvantageInputs, change: Callable[[Tensor], Tensor], rows: Tensor) -> AdvantageInputs:
    """``inputs`` with the scores and components of ``rows`` (bool) changed, where they have a score."""
    mask = inputs.response_mask
    rewards = torch.where(_last(mask) & rows[:, None], change(inputs.rewards), inputs.rewards)
    rows = rows & mask.any(dim=1)
    components = {name: torch.where(rows, change(part), part) for name, part in inputs.components.items()}
    return dataclasses.replace(inputs, rewards=rewards, components=components)


def _emptied(inputs: AdvantageInputs, rows: Tensor) -> AdvantageInputs:
    """``inputs`` with these rows (bool) as those of responses whose scorer failed."""
    return dataclasses.replace(
        inputs,
        rewards=torch.where(rows[:, None], 0.0, inputs.rewards),
        values=None if inputs.values is None else torch.where(rows[:, None], 0.0, inputs.values),
        response_mask=inputs.response_mask & ~rows[:, None],
        components={name: torch.where(rows, 0.0, part) for name, part in inputs.components.items()},
    )


def _compare(got: Advantages, want: Advantages, when: str) -> None:
    expect_equal("the advantages", got.advantages, want.advantages, when)
    expect_equal("the returns", got.returns, want.returns, when)


def _shape(estimate: Estimate, inputs: AdvantageInputs) -> None:
    output = estimate(inputs)
    expect(isinstance(output, Advantages), f"it returns {type(output).__name__}, not Advantages(advantages, returns)")
    shape = (inputs.rewards.shape[0], inputs.rewards.shape[1])
    for name, tensor in output._asdict().items():
        expect_shape(f"the {name}", tensor, shape, inputs.rewards.dtype)
        expect_finite(f"the {name}", tensor)


def _zero_outside_the_mask(estimate: Estimate, inputs: AdvantageInputs) -> None:
    for name, tensor in estimate(inputs)._asdict().items():
        outside = tensor[~inputs.response_mask]
        expect(not outside.any(), f"the {name} are not 0 where the mask is: {float(outside.abs().max()):.3g}")


def _inputs_untouched(estimate: Estimate, inputs: AdvantageInputs) -> None:
    expect_untouched(inputs, lambda: estimate(inputs))


def _deterministic(estimate: Estimate, inputs: AdvantageInputs) -> None:
    first, second = estimate(inputs), estimate(inputs)
    expect(torch.equal(first.advantages, second.advantages), "two calls with the same inputs give different advantages")


def _same_on_cuda(estimate: Estimate, inputs: AdvantageInputs) -> None:
    moved, want = estimate(on_cuda(inputs)), estimate(inputs)
    expect_on_cuda("the advantages", moved.advantages, want.advantages)
    expect_on_cuda("the returns", moved.returns, want.returns)


def _empty_rows_take_no_part(estimate: Estimate, inputs: AdvantageInputs) -> None:
    everyone = torch.ones(len(inputs.rewards), dtype=torch.bool)
    for empty in (~everyone, inputs.group_ids == 4, everyone):
        partly = _emptied(inputs, empty)
        scored = partly.response_mask.any(dim=1)
        with_them = estimate(partly)
        if scored.any():
            without = estimate(_changed(partly, lambda tensor, scored=scored: tensor[scored]))  # type: ignore[misc]
            kept = Advantages(with_them.advantages[scored], with_them.returns[scored])
            _compare(kept, without, "when rows without a trained token stand beside them")
    for name, tensor in with_them._asdict().items():
        expect(not tensor.any(), f"the {name} of a batch without a trained token are not 0")


def _padding(estimate: Estimate, inputs: AdvantageInputs) -> None:
    width = inputs.rewards.shape[1]
    wide = _changed(inputs, lambda tensor: torch.nn.functional.pad(tensor, (0, 5)) if tensor.dim() == 2 else tensor)
    output = estimate(wide)
    got = Advantages(output.advantages[:, :width], output.returns[:, :width])
    _compare(got, estimate(inputs), "with five columns of padding")


def _row_order(estimate: Estimate, inputs: AdvantageInputs) -> None:
    order = torch.randperm(len(inputs.rewards), generator=generator(1))
    base = estimate(inputs)
    want = Advantages(base.advantages[order], base.returns[order])
    _compare(estimate(_changed(inputs, lambda tensor: tensor[order])), want, "with the order of the rows")


def _group_labels(estimate: Estimate, inputs: AdvantageInputs) -> None:
    labels = torch.randperm(int(inputs.group_ids.max()) + 1, generator=generator(2))
    renamed = dataclasses.replace(inputs, group_ids=labels[inputs.group_ids])
    _compare(estimate(renamed), estimate(inputs), "with the numbers that the groups go by")


def _equal_scores(estimate: Estimate, inputs: AdvantageInputs) -> None:
    everyone = torch.ones(len(inputs.rewards), dtype=torch.bool)
    plain = dataclasses.replace(inputs, rewards=torch.zeros_like(inputs.rewards))
    for score in (0.0, 1.0):
        output = estimate(_rescored(plain, partial(torch.full_like, fill_value=score), everyone))
        for name, tensor in output._asdict().items():
            expect_finite(f"with all scores {score:g} the {name}", tensor)


def _extreme_scores(estimate: Estimate, inputs: AdvantageInputs) -> None:
    everyone = torch.ones(len(inputs.rewards), dtype=torch.bool)
    signs = torch.where(torch.arange(len(inputs.rewards)) % 2 == 0, 1e6, -1e6).to(inputs.rewards.dtype)

    def extreme(tensor: Tensor) -> Tensor:
        return signs if tensor.dim() == 1 else signs[:, None].expand_as(tensor)

    for name, tensor in estimate(_rescored(inputs, extreme, everyone))._asdict().items():
        expect_finite(f"with scores of ±1e6 the {name}", tensor)


def _group_isolation(estimate: Estimate, inputs: AdvantageInputs) -> None:
    group = inputs.group_ids == 0
    alone = inputs.group_ids == 3  # its advantage is 0, whatever the others' are scaled by
    others = ~(group | alone)[:, None] & inputs.response_mask
    base = estimate(inputs).advantages
    shifted = estimate(_rescored(inputs, lambda tensor: tensor + 1, group)).advantages
    _expect_scaled(base[others], shifted[others])
    random = generator(3)

    def change(tensor: Tensor) -> Tensor:
        return torch.rand(tensor.shape, generator=random, dtype=torch.float64).to(tensor.dtype)

    moved = estimate(_rescored(inputs, change, group)).advantages
    _expect_affine(base[others], moved[others])


def _expect_scaled(before: Tensor, after: Tensor) -> None:
    """after = a·before with one a > 0."""
    scale = (after.norm() / before.norm()).clamp(min=1e-12) if before.any() else torch.ones(())
    expect_equal(
        "the advantages",
        after / scale.to(after.dtype),
        before,
        "when all scores of another group rise by 1, not by one scale",
    )


def _expect_affine(before: Tensor, after: Tensor) -> None:
    """after = a·before + b with one a > 0 and one b."""
    low, high = int(before.argmin()), int(before.argmax())
    if before[low] == before[high]:
        expect_equal("the advantages", after, after[low].expand_as(after), "with the scores of another group")
        return
    slope = (after[high] - after[low]) / (before[high] - before[low])
    expect(bool(slope > 0), "the scores of another group turn the order of the advantages around")
    fitted = after[low] + slope * (before - before[low])
    error = float((after - fitted).abs().max())
    expect(
        error <= 10 * TOLERANCE[before.dtype] * max(1.0, float(after.abs().max())),
        f"the scores of another group change the advantages, and not by one scale and shift (off by {error:.3g})",
    )


def _group_of_one(estimate: Estimate, inputs: AdvantageInputs) -> None:
    alone = inputs.response_mask.any(dim=1) & (inputs.group_ids == 3)
    advantages = estimate(inputs).advantages[alone]
    expect(not advantages.any(), "a response alone in its group has an advantage other than 0")
    group_ids = inputs.group_ids.clone()
    group_ids[2] = 3  # the row without a score joins it
    advantages = estimate(dataclasses.replace(inputs, group_ids=group_ids)).advantages[alone]
    expect(not advantages.any(), "a response whose companions have no score has an advantage other than 0")


def _vectorised(selected: Selected[AdvantageEstimator]) -> None:
    estimate = selected.load()

    def responses(rows: int) -> Callable[[], object]:
        inputs = example(selected.entry, torch.float32, groups=tuple(row % 4 for row in range(rows)))
        return lambda: estimate(inputs)

    def tokens(width: int) -> Callable[[], object]:
        inputs = example(selected.entry, torch.float32, width=width)
        return lambda: estimate(inputs)

    def groups(count: int) -> Callable[[], object]:
        inputs = example(selected.entry, torch.float32, groups=tuple(row % count for row in range(128)))
        return lambda: estimate(inputs)

    for call_at, what in ((responses, "responses"), (tokens, "tokens"), (groups, "groups")):
        expect_vectorised(call_at, what)


_CHECKS = {
    "shape_and_dtype": _shape,
    "zero_outside_the_mask": _zero_outside_the_mask,
    "inputs_untouched": _inputs_untouched,
    "deterministic": _deterministic,
    "same_on_cuda": _same_on_cuda,
    "empty_rows_take_no_part": _empty_rows_take_no_part,
    "invariant_to_padding": _padding,
    "invariant_to_row_order": _row_order,
    "invariant_to_group_labels": _group_labels,
    "finite_with_equal_scores": _equal_scores,
    "finite_with_extreme_scores": _extreme_scores,
}
_GROUP_CHECKS = {"groups_are_isolated": _group_isolation, "group_of_one_has_no_advantage": _group_of_one}
