"""Checks of advantage estimators: the contract of :mod:`corerl.contracts.advantage_estimators`.

:mod:`corerl_testing.advantage_rewards` checks the relations to rewards, values and a greedy baseline,
:mod:`corerl_testing.advantage_groups` those within groups.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageEstimator, AdvantageInputs, Advantages
from corerl.registry import Selected
from corerl_testing import advantage_groups, advantage_rewards
from corerl_testing.advantage_examples import changed, emptied, example, random_scores, rescored, scored
from corerl_testing.enumerable import claims
from corerl_testing.results import Run, skipping
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
)

Estimate = Callable[[AdvantageInputs], Advantages]


def checks(selected: Selected[AdvantageEstimator]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    entry = selected.entry
    for name, check in _CHECKS.items():
        yield name, partial(_in_both_dtypes, check, selected)
    for need, of_need in _CHECKS_BY_NEED.items():
        for name, check_of_entry in of_need.items():
            run = partial(_in_both_dtypes, partial(check_of_entry, entry), selected)
            yield name, run if not need or need in entry.needs else skipping(f"it declares no need of {need}")
    alone = partial(_in_both_dtypes, advantage_groups.groups_alone, selected)
    yield "groups_alone", alone if entry.facts.groups_alone else skipping("it does not declare groups_alone")
    yield "vectorised", partial(_vectorised, selected)
    yield from claims.estimator_checks(selected)
    yield "same_in_a_fresh_process", partial(_same_in_a_fresh_process, selected)


def _in_both_dtypes(check: Callable[[Estimate, AdvantageInputs], None], selected: Selected[AdvantageEstimator]) -> None:
    in_both_dtypes(partial(check, selected.load()), partial(example, selected.entry))


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


def _precision(estimate: Estimate, inputs: AdvantageInputs) -> None:
    expect_precision(lambda: estimate(inputs), inputs.rewards.dtype)


def _same_on_cuda(estimate: Estimate, inputs: AdvantageInputs) -> None:
    moved, want = estimate(on_cuda(inputs)), estimate(inputs)
    expect_on_cuda("the advantages", moved.advantages, want.advantages)
    expect_on_cuda("the returns", moved.returns, want.returns)


def _empty_rows_take_no_part(estimate: Estimate, inputs: AdvantageInputs) -> None:
    everyone = torch.ones(len(inputs.rewards), dtype=torch.bool)
    for empty in (~everyone, inputs.group_ids == 4, everyone):
        partly = emptied(inputs, empty)
        scored = partly.response_mask.any(dim=1)
        with_them = estimate(partly)
        if scored.any():
            without = estimate(changed(partly, lambda tensor, scored=scored: tensor[scored]))  # type: ignore[misc]
            kept = Advantages(with_them.advantages[scored], with_them.returns[scored])
            _compare(kept, without, "when rows without a trained token stand beside them")
    for name, tensor in with_them._asdict().items():
        expect(not tensor.any(), f"the {name} of a batch without a trained token are not 0")


def _padding(estimate: Estimate, inputs: AdvantageInputs) -> None:
    width = inputs.rewards.shape[1]
    wide = changed(inputs, lambda tensor: torch.nn.functional.pad(tensor, (0, 5)) if tensor.dim() == 2 else tensor)
    output = estimate(wide)
    got = Advantages(output.advantages[:, :width], output.returns[:, :width])
    _compare(got, estimate(inputs), "with five columns of padding")


def _tied(inputs: AdvantageInputs) -> AdvantageInputs:
    """The inputs with scores of 0 and 1; two of a group's three responses are right."""
    scores = torch.zeros(len(inputs.rewards))
    scores[[0, 6, 1, 8, 3, 9]] = 1
    return scored(inputs, scores)


def _row_order(estimate: Estimate, inputs: AdvantageInputs) -> None:
    order = torch.randperm(len(inputs.rewards), generator=generator(1))
    for given, which in ((inputs, ""), (_tied(inputs), ", where scores are 0 or 1")):
        base = estimate(given)
        want = Advantages(base.advantages[order], base.returns[order])
        moved = estimate(changed(given, lambda tensor: tensor[order]))
        _compare(moved, want, f"with the order of the rows{which}")


def _group_labels(estimate: Estimate, inputs: AdvantageInputs) -> None:
    labels = torch.randperm(int(inputs.group_ids.max()) + 1, generator=generator(2))
    renamed = dataclasses.replace(inputs, group_ids=labels[inputs.group_ids])
    _compare(estimate(renamed), estimate(inputs), "with the numbers that the groups go by")


def _equal_scores(estimate: Estimate, inputs: AdvantageInputs) -> None:
    everyone = torch.ones(len(inputs.rewards), dtype=torch.bool)
    plain = dataclasses.replace(inputs, rewards=torch.zeros_like(inputs.rewards))
    for score in (0.0, 1.0):
        output = estimate(rescored(plain, partial(torch.full_like, fill_value=score), everyone))
        for name, tensor in output._asdict().items():
            expect_finite(f"with all scores {score:g} the {name}", tensor)


def _extreme_scores(estimate: Estimate, inputs: AdvantageInputs) -> None:
    everyone = torch.ones(len(inputs.rewards), dtype=torch.bool)
    signs = torch.where(torch.arange(len(inputs.rewards)) % 2 == 0, 1e6, -1e6).to(inputs.rewards.dtype)

    def extreme(tensor: Tensor) -> Tensor:
        return signs if tensor.dim() == 1 else signs[:, None].expand_as(tensor)

    for name, tensor in estimate(rescored(inputs, extreme, everyone))._asdict().items():
        expect_finite(f"with scores of ±1e6 the {name}", tensor)


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


def _same_in_a_fresh_process(selected: Selected[AdvantageEstimator]) -> None:
    """The second of two batches of one shape, as the first call of a fresh process."""
    batch = example(selected.entry, torch.float32, groups=(0, 1, 1, 2, 0, 2, 0, 1), width=11)
    earlier = scored(changed(batch, lambda tensor: tensor.flip(0)), random_scores(batch, 18))
    expect_the_same_elsewhere(selected, (earlier,), (batch,))


_CHECKS: dict[str, Callable[[Estimate, AdvantageInputs], None]] = {
    "shape_and_dtype": _shape,
    "zero_outside_the_mask": _zero_outside_the_mask,
    "inputs_untouched": _inputs_untouched,
    "deterministic": _deterministic,
    "keeps_precision": _precision,
    "same_on_cuda": _same_on_cuda,
    "empty_rows_take_no_part": _empty_rows_take_no_part,
    "invariant_to_padding": _padding,
    "invariant_to_row_order": _row_order,
    "invariant_to_group_labels": _group_labels,
    "finite_with_equal_scores": _equal_scores,
    "finite_with_extreme_scores": _extreme_scores,
}
_CHECKS_BY_NEED = {
    "": {
        "invariant_to_masked_tokens": advantage_rewards.invariant_to_masked_tokens,
        "raised_score_raises_the_advantage": advantage_rewards.raised_score,
        "raised_component_lowers_no_advantage": advantage_rewards.raised_component,
        "rewards_of_all_tokens_count": advantage_rewards.reward_at_any_token,
        "credit_flows_back": advantage_rewards.credit_flows_back,
        "no_advantage_from_rounding": advantage_rewards.no_advantage_from_rounding,
        "copes_with_one_response": advantage_groups.one_response,
        "copes_with_a_large_group": advantage_groups.large_group,
        "copes_with_many_groups": advantage_groups.many_groups,
    },
    "groups": {
        "groups_are_isolated": advantage_groups.group_isolation,
        "group_of_one_has_no_advantage": advantage_groups.group_of_one,
    },
    "critic": {
        "raised_value_lowers_the_advantage": advantage_rewards.value_lowers,
        "returns_are_of_the_row_alone": advantage_rewards.returns_are_isolated,
        "last_return_is_the_last_reward": advantage_rewards.last_return,
        "returns_look_ahead": advantage_rewards.returns_look_ahead,
    },
    "greedy_baseline": {"greedy_score_lowers_the_advantage": advantage_rewards.greedy_score_lowers},
    "log_probs": {"uses_log_probs": advantage_rewards.uses_log_probs},
    "sum_pi_squared": {"uses_sum_pi_squared": advantage_rewards.uses_sum_pi_squared},
}
"""need of an entry, '' for none -> its checks"""
