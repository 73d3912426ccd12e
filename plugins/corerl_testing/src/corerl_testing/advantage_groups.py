"""Checks of advantage estimators that compare the responses of a group, and of batches of unusual sizes.

An estimator without the fact ``groups_alone`` may normalise over the batch, so two rules check its isolation of groups.
A constant added to all scores of one group at most scales the advantages of others, all by one a > 0. Any other
change of one group's scores changes the advantages of others by one common map a·A + b, a > 0.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageEstimator, AdvantageInputs, Advantages
from corerl.registry import Entry
from corerl_testing.advantage_examples import changed, compared, example, rescored
from corerl_testing.advantage_rewards import expect_rises
from corerl_testing.tensors import TOLERANCE, expect, expect_equal, expect_finite, generator

Estimate = Callable[[AdvantageInputs], Advantages]
AnyEntry = Entry[AdvantageEstimator]
COPIES = 60


def group_isolation(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    group = inputs.group_ids == 0
    alone = inputs.group_ids == 3  # its advantage is 0 at every scale of the others
    others = ~(group | alone)[:, None] & inputs.response_mask
    base = estimate(inputs).advantages
    shifted = estimate(rescored(inputs, lambda tensor: tensor + 1, group)).advantages
    _expect_scaled(base[others], shifted[others])
    random = generator(3)

    def change(tensor: Tensor) -> Tensor:
        return torch.rand(tensor.shape, generator=random, dtype=torch.float64).to(tensor.dtype)

    moved = estimate(rescored(inputs, change, group)).advantages
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


def _expect_affine(before: Tensor, after: Tensor, cause: str = "the scores of another group") -> None:
    """after = a·before + b with one a > 0 and one b."""
    low, high = int(before.argmin()), int(before.argmax())
    if before[low] == before[high]:
        expect_equal("the advantages", after, after[low].expand_as(after), f"with {cause}")
        return
    slope = (after[high] - after[low]) / (before[high] - before[low])
    expect(bool(slope > 0), f"{cause} turn the order of the advantages around")
    fitted = after[low] + slope * (before - before[low])
    error = float((after - fitted).abs().max())
    expect(
        error <= 10 * TOLERANCE[before.dtype] * max(1.0, float(after.abs().max())),
        f"{cause} change the advantages, and not by one scale and shift (off by {error:.3g})",
    )


def groups_alone(estimate: Estimate, inputs: AdvantageInputs) -> None:
    """Bit for bit: the groups of a step may be in several processes."""
    whole = estimate(inputs)
    for groups in (inputs.group_ids < 2, inputs.group_ids >= 2):
        part = changed(inputs, lambda tensor, groups=groups: tensor[groups])  # type: ignore[misc]
        _, own = torch.unique(part.group_ids, return_inverse=True)
        part = dataclasses.replace(part, group_ids=own)
        for name, tensor in estimate(part)._asdict().items():
            same = torch.equal(tensor, getattr(whole, name)[groups])
            expect(same, f"the {name} of some groups without the others are not bit for bit those of the batch")


def group_of_one(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    alone = inputs.response_mask.any(dim=1) & (inputs.group_ids == 3)
    advantages = estimate(inputs).advantages[alone]
    expect(not advantages.any(), "a response alone in its group has an advantage other than 0")
    group_ids = inputs.group_ids.clone()
    group_ids[2] = 3  # the row without a score joins it
    advantages = estimate(dataclasses.replace(inputs, group_ids=group_ids)).advantages[alone]
    expect(not advantages.any(), "a response whose companions have no score has an advantage other than 0")


def one_response(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A batch of one response, of one token too, and one in which every group is one response."""
    for row, width in ((0, inputs.rewards.shape[1]), (1, 1)):
        alone = changed(
            inputs,
            lambda tensor, row=row, width=width: tensor[[row], :width] if tensor.dim() == 2 else tensor[[row]],  # type: ignore[misc]
        )
        alone = dataclasses.replace(alone, group_ids=torch.zeros(1, dtype=torch.int64))
        _expect_usable(entry, estimate, alone, f"of a batch of one response of {width} tokens")
    singles = dataclasses.replace(inputs, group_ids=torch.arange(len(inputs.rewards)))
    _expect_usable(entry, estimate, singles, "of a batch without two responses to one prompt")


def _expect_usable(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs, where: str) -> None:
    for name, tensor in estimate(inputs)._asdict().items():
        expect_finite(f"the {name} {where}", tensor)
        if "groups" in entry.needs and name == "advantages":
            expect(not tensor.any(), f"the advantages {where} are not 0")


def large_group(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """A group of 64: advantages are finite and rise with the scores."""
    large = example(entry, inputs.rewards.dtype, groups=(0,) * 64)
    expect_finite("the advantages of a group of 64", estimate(large).advantages)
    expect_rises(estimate, large, compared(entry, large)[:2])


def many_groups(entry: AnyEntry, estimate: Estimate, inputs: AdvantageInputs) -> None:
    """Sixty copies of the batch, each with its own groups: every copy gets the same advantages."""
    groups = int(inputs.group_ids.max()) + 1
    many = changed(inputs, lambda tensor: tensor.repeat(COPIES, *[1] * (tensor.dim() - 1)))
    ids = torch.arange(COPIES).repeat_interleave(len(inputs.rewards)) * groups + many.group_ids
    copies = estimate(dataclasses.replace(many, group_ids=ids)).advantages.view(COPIES, *inputs.rewards.shape)
    expect_equal(
        "the advantages", copies, copies[:1].expand_as(copies), f"from one copy of a batch to another, of {COPIES}"
    )
    trained = inputs.response_mask
    _expect_affine(estimate(inputs).advantages[trained], copies[0][trained], "further groups")
