"""What the checks of advantage estimators ask for; wrong ones are in planted/advantage_estimators."""

from typing import Any

import pytest
import torch
from planted.advantage_estimators.group_baselines import batch_baseline

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages


def test_without_the_need_of_groups_the_checks_of_groups_are_skipped(outcomes: Any) -> None:
    result = outcomes("advantage_estimators", batch_baseline)["groups_are_isolated"]
    assert (result.status, result.reason) == ("skipped", "it declares no need of groups")


@pytest.mark.parametrize(
    ("need", "name"),
    [
        ("critic", "values"),
        ("greedy_baseline", "greedy_scores"),
        ("sum_pi_squared", "sum_pi_squared"),
    ],
)
def test_an_input_is_given_when_it_is_declared(failures: Any, need: str, name: str) -> None:
    def needs_it(inputs: AdvantageInputs) -> Advantages:
        rows = getattr(inputs, name).reshape(len(inputs.rewards), -1)[:, :1]
        values = torch.where(inputs.response_mask, inputs.rewards - rows, 0.0)
        return Advantages(values, values)

    assert failures("advantage_estimators", needs_it, only="shape_and_dtype", needs={need}) == {}
    reason = failures("advantage_estimators", needs_it, only="shape_and_dtype")["shape_and_dtype"]
    assert reason == "it raised AttributeError: 'NoneType' object has no attribute 'reshape'"
