"""The checks of scorers, held against scorers with one mistake each."""

import math
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from corerl.registry.base import Entry, Owner, Selected
from corerl.testing import scorers
from corerl.testing.results import CheckFailed, CheckSkipped


def run(scorer: Any, name: str) -> None:
    entry: Entry[Any] = Entry("scorer", "s", scorer, Owner("tests"), data_sources=("acme/sums",))
    dict(scorers.checks(Selected(entry)))[name]()


def good(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> Any:
    if not isinstance(ground_truth, str):
        raise TypeError(f"ground truth {ground_truth!r} is no text")
    return {"score": float(ground_truth in response), "length_ok": len(response) < 50, "extracted": response[-5:]}


NAMES = [name for name, _ in scorers.checks(Selected(Entry("scorer", "s", good, Owner("tests"))))]


@pytest.mark.parametrize("name", NAMES)
def test_a_good_scorer_passes(name: str) -> None:
    run(good, name)


def always(value: Any) -> Any:
    return lambda response, ground_truth, data_source, extra_info: value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "gave score=nan, which is not a finite number"),
        ("1.0", "gave score='1.0', which is not a finite number"),
        (None, "gave score=None, which is not a finite number"),
        ({"acc": 1.0}, r"gave a mapping without 'score': \['acc'\]"),
        ({"score": 1.0, "format": math.inf}, "gave format=inf, which is not a finite number"),
    ],
)
def test_what_is_no_finite_number_is_caught(value: Any, words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        run(always(value), "number_or_exception_for_ordinary_responses")


def test_a_score_that_is_nan_for_an_empty_response_is_caught() -> None:
    def share_of_digits(response: str, *_: Any) -> float:
        return sum(map(str.isdigit, response)) / len(response) if response else math.nan

    run(share_of_digits, "number_or_exception_for_ordinary_responses")
    with pytest.raises(CheckFailed, match=r"the response '' with ground truth '42' gave score=nan"):
        run(share_of_digits, "number_or_exception_for_empty_responses")


def test_a_scorer_that_hangs_on_a_long_response_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorers, "SECONDS", 0.2)

    def slow(response: str, *_: Any) -> float:
        time.sleep(len(response) / 1e5)
        return 1.0

    with pytest.raises(CheckFailed, match=r"the scoring of the response 'word .* had not ended after 0.2 s"):
        run(slow, "number_or_exception_for_very_long_responses")


def test_a_score_that_depends_on_the_calls_before_is_caught() -> None:
    seen: list[str] = []

    def novelty(response: str, *_: Any) -> float:
        seen.append(response)
        return 1.0 / seen.count(response)

    with pytest.raises(CheckFailed, match=r"gave 1.0, and .* the second time"):
        run(novelty, "deterministic")


def test_a_scorer_that_keeps_the_response_in_a_shared_place_is_caught() -> None:
    class Shared:
        def __call__(self, response: str, *_: Any) -> float:
            self.response = response
            time.sleep(0.0005)
            return float(len(self.response))

    run(Shared(), "deterministic")
    with pytest.raises(CheckFailed, match="among 8 threads"):
        run(Shared(), "thread_safe")


def test_a_scorer_that_lets_threads_wait_for_each_other_passes() -> None:
    lock = threading.Lock()

    def locked(response: str, *_: Any) -> float:
        with lock:
            return float(len(response))

    run(locked, "thread_safe")


def test_a_scorer_that_another_process_cannot_load_is_caught() -> None:
    with pytest.raises(CheckFailed, match="another process cannot load it by its name"):
        run(always(1.0), "named_to_another_process")


def test_a_scorer_that_uses_up_the_ground_truth_is_caught() -> None:
    def pops(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> float:
        return float(str(ground_truth["numbers"].pop()) in response)

    with pytest.raises(CheckFailed, match=r"it changed its arguments from .* they are shared"):
        run(pops, "arguments_unchanged")


def test_a_scorer_for_other_ground_truths_is_passed_over() -> None:
    def tests_of_code(response: str, ground_truth: Any, *_: Any) -> float:
        return float(ground_truth["tests"] in response)

    with pytest.raises(CheckSkipped, match="takes none of the ground truths that were tried: TypeError"):
        run(tests_of_code, "number_or_exception_for_ordinary_responses")


def test_the_scorer_is_called_with_one_of_its_data_sources() -> None:
    def of_sums(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> float:
        return 1.0 if data_source == "acme/sums" else math.nan

    run(of_sums, "number_or_exception_for_ordinary_responses")


async def length(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> float:
    return float(len(response))


async def nothing(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> float:
    return math.nan


def test_an_async_scorer_is_checked_like_any_other() -> None:
    for name in NAMES:
        run(length, name)
    with pytest.raises(CheckFailed, match="not a finite number"):
        run(nothing, "number_or_exception_for_ordinary_responses")
