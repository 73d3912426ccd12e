"""Shares without an answer, and cut off."""

import pytest

from corerl.contracts.reward_managers import RewardResult
from corerl.data.report import Location
from corerl_tools.evaluation.files import Response
from corerl_tools.evaluation.reading import readings


def response(source: str = "a", **row: object) -> Response:
    return Response(Location("a.jsonl", 1), row, 0, "text", source, "4")


def test_the_shares_are_those_of_each_data_source() -> None:
    rows = [response(finish_reason="length"), response(finish_reason="stop"), response(), response("b"), response("b")]
    results = [
        RewardResult(0.0),
        RewardResult(1.0, extracted="4"),
        RewardResult(None, error="late"),
        RewardResult(0.0, extracted="3"),
        RewardResult(0.0, extracted=""),
    ]
    found = readings(rows, results)
    assert [(each.responses, each.without_answer, each.cut_off, each.all_zero) for each in found.values()] == [
        (2, 1, 1, False),
        (2, 1, 0, True),
    ]
    assert (
        found["a"].line()
        == "of 2 responses, 50.00% without an extracted answer (1), 50.00% cut off at the limit of tokens (1)"
    )
    assert found["a"].is_suspicious and found["b"].is_suspicious


@pytest.mark.parametrize(
    ("row", "cut"),
    [
        ({"finish_reason": "length"}, True),
        ({"finish_reason": "stop", "response_length": 8, "max_response_length": 8}, False),
        ({"response_length": 8, "max_response_length": 8}, True),
        ({"response_length": 7, "max_response_length": 8}, False),
        ({"response_length": 0}, False),
        ({}, False),
    ],
)
def test_a_response_is_cut_off_by_its_reason_else_by_its_length(row: dict[str, object], cut: bool) -> None:
    assert response(**row).is_cut_off is cut


def test_a_scorer_that_extracts_nothing_has_no_share() -> None:
    [reading] = readings([response()] * 2, [RewardResult(0.5), RewardResult(0.0)]).values()
    assert reading.line() is None and not reading.is_suspicious
