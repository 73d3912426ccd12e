"""What the checks of scorers do beside catching the planted faults."""

import time
from typing import Any

import pytest
from planted.scorers.values import uses_up

from corerl.registry import Owner, Registries, Selected
from corerl_testing import scorers
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.scorer_calls import sources


def run(scorer: Any, name: str, **facts: Any) -> None:
    """In this process."""
    dict(scorers.checks(Selected(Registries().scorers.entry("s", scorer, Owner("tests"), **facts))))[name]()


def test_a_scorer_that_hangs_on_a_long_response_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorers, "SECONDS", 0.2)

    def slow(response: str, *_: Any) -> float:
        time.sleep(len(response) / 1e5)
        return 1.0

    with pytest.raises(CheckFailed, match=r"the scoring of the response 'word .* had not ended after 0.2 s"):
        run(slow, "number_or_exception_for_very_long_responses")


def test_a_scorer_whose_first_call_takes_long_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorers, "SECONDS", 0.3)
    calls: list[str] = []

    def loads(response: str, *_: Any) -> float:
        calls.append(response)
        if len(calls) == 1:
            time.sleep(0.5)
        return 1.0

    run(loads, "number_or_exception_for_empty_responses")


def test_a_scorer_for_other_ground_truths_is_passed_over() -> None:
    def tests_of_code(response: str, ground_truth: Any, *_: Any) -> float:
        return float(ground_truth["tests"] in response)

    with pytest.raises(CheckSkipped, match="takes none of the ground truths that were tried: TypeError"):
        run(tests_of_code, "number_or_exception_for_ordinary_responses")
    run(tests_of_code, "every_data_source", data_sources=("acme/code",))


def test_the_scorer_is_called_with_its_data_sources_and_another() -> None:
    entry = Registries().scorers.entry("s", print, Owner("tests"), data_sources=("acme/sums", "aime*"))
    assert sources(Selected(entry)) == ["acme/sums", "aime24", "acme/conformance"]


def test_a_data_source_that_it_is_registered_for_and_refuses_is_caught() -> None:
    def of_sums(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> float:
        return {"acme/sums": 1.0, "acme/conformance": 1.0}[data_source]

    with pytest.raises(CheckFailed, match=r"'aime24', that it is registered for, and not for 'acme/sums': KeyError"):
        run(of_sums, "every_data_source", data_sources=("acme/sums", "aime*"))


def test_what_a_scorer_takes_out_of_a_ground_truth_is_there_for_the_next_check() -> None:
    """Else it had nothing left to take by the time that the arguments are compared."""
    run(uses_up, "number_or_exception_for_ordinary_responses")
    with pytest.raises(CheckFailed, match="they are shared"):
        run(uses_up, "arguments_unchanged")
