"""Managers whose results are wrong, or in a wrong order."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from planted.fault import Fault
from planted.reward_managers.right import Right, Whole, fault

Requests = Sequence[RewardRequest]
Results = list[RewardResult]


class Reversed(Whole):
    """The last first."""

    def score(self, requests: Requests) -> Results:
        return super().score(requests)[::-1]


class AsTheyEnd(Whole):
    """In the order in which the scorers end."""

    def score(self, requests: Requests) -> Results:
        slowness = [request.extra_info.get("seconds", 0.0) for request in requests]
        order = sorted(range(len(requests)), key=lambda n: slowness[n])
        results = super().score(requests)
        return [results[n] for n in order]


class DropsFailed(Whole):
    """Returns only results with a score."""

    def score(self, requests: Requests) -> Results:
        return [result for result in super().score(requests) if result.error is None]


class DropsLast(Whole):
    """One too few."""

    def score(self, requests: Requests) -> Results:
        return super().score(requests)[: max(1, len(requests) - 1)]


class NeverNothing(Whole):
    """An error for a batch without requests."""

    def score(self, requests: Requests) -> Results:
        return super().score(requests) or [RewardResult(None, error="no requests")]


class ZeroForFailed(Right):
    """A failed scorer is a wrong answer."""

    def one(self, request: RewardRequest) -> RewardResult:
        result = super().one(request)
        return RewardResult(0.0) if result.error else result

    def late(self, request: RewardRequest) -> RewardResult:
        return RewardResult(0.0)


class ScoreAndError(Right):
    """Both."""

    def one(self, request: RewardRequest) -> RewardResult:
        result = super().one(request)
        return replace(result, score=0.0) if result.error else result


class WithTraceback(Right):
    """An error of several lines."""

    def one(self, request: RewardRequest) -> RewardResult:
        result = super().one(request)
        return replace(result, error=f"Traceback\n{result.error}") if result.error else result


class KindInWords(Right):
    """An error_kind that names no metric."""

    def one(self, request: RewardRequest) -> RewardResult:
        result = super().one(request)
        return replace(result, error_kind="the scorer raised") if result.error else result


class AsReturned(Right):
    """Whatever the scorer returns is a score."""

    def result(self, value: Any) -> RewardResult:
        parts = dict(value) if isinstance(value, Mapping) else {"score": value}
        extracted = parts.pop("extracted", None)
        return RewardResult(parts.pop("score"), parts, extracted)


class NumbersAsReturned(Right):
    """Checked, and not converted."""

    def result(self, value: Any) -> RewardResult:
        result = super().result(value)
        return replace(result, score=value["score"] if isinstance(value, Mapping) else value)


class WholeNumbers(Right):
    """Truncates the decimals."""

    def result(self, value: Any) -> RewardResult:
        result = super().result(value)
        return result if result.score is None or result.score > 1 else replace(result, score=float(int(result.score)))


class ComponentsAsReturned(Right):
    """Only the score is checked."""

    def result(self, value: Any) -> RewardResult:
        if not isinstance(value, Mapping):
            return super().result(value)
        parts = {name: part for name, part in value.items() if name not in ("score", "extracted")}
        return RewardResult(super().result(value.get("score", "")).score, parts, value.get("extracted"))


class ScoreAlone(Right):
    """Components and the extracted text are lost."""

    def result(self, value: Any) -> RewardResult:
        return replace(super().result(value), components={}, extracted=None)


class SameRow(Whole):
    """All with the first request's extra_info."""

    def score(self, requests: Requests) -> Results:
        return super().score([replace(request, extra_info=requests[0].extra_info) for request in requests])


class Strips(Right):
    """Takes blanks off a response."""

    def call(self, request: RewardRequest) -> Any:
        return super().call(replace(request, response=request.response.strip()))


class ThroughJson(Right):
    """Sends a ground truth as JSON."""

    def call(self, request: RewardRequest) -> Any:
        return super().call(replace(request, ground_truth=json.loads(json.dumps(request.ground_truth))))


class AnyScorer(Right):
    """An unknown data source is scored by the first scorer."""

    def call(self, request: RewardRequest) -> Any:
        known = (
            request if request.data_source in self.scorers else replace(request, data_source=next(iter(self.scorers)))
        )
        return super().call(known)


class Pops(Right):
    """Takes something out of the row's extra_info."""

    def call(self, request: RewardRequest) -> Any:
        request.extra_info.pop("index", None)  # type: ignore[attr-defined]
        return super().call(request)


_RAISES, _VALUE = "exceptions_are_errors", "no_number_is_an_error"

FAULTS: list[Fault] = [
    fault("drops_last", "the last result is lost", DropsLast, "one_result_a_request", "2 requests gave 1 results"),
    fault("never_nothing", "no request gives a result", NeverNothing, "empty_batch", "0 requests gave 1 results"),
    fault("reversed", "results are reversed", Reversed, "results_follow_the_requests", "in the order of the requests"),
    fault("as_they_end", "results come as scorers end", AsTheyEnd, "order_of_slow_scorers", "came as [700.0, 600.0"),
    fault("drops_failed", "failed requests have no result", DropsFailed, _RAISES, "9 requests gave 5 results"),
    fault("zero_for_failed", "a failed scorer gives 0", ZeroForFailed, _RAISES, "gave the score 0.0: it must give an"),
    fault("zero_for_exit", "SystemExit gives 0", ZeroForFailed, "exit_is_an_error", "SystemExit gave the score 0.0"),
    fault(
        "zero_for_nan", "NaN gives 0", ZeroForFailed, _VALUE, "returns NaN gave the score 0.0: it must give an error"
    ),
    fault("zero_for_late", "a late scorer gives 0", ZeroForFailed, "hanging_scorer_is_an_error", "gave the score 0.0"),
    fault("any_scorer", "unknown data is scored", AnyScorer, "unknown_data_source_is_an_error", "gave the score 1.0"),
    fault("score_and_error", "an error has a score", ScoreAndError, _RAISES, "exactly one must be None"),
    fault("with_traceback", "an error has two lines", WithTraceback, _RAISES, "must be one line that says what went"),
    fault("kind_in_words", "an error_kind has spaces", KindInWords, _RAISES, "must be one word: it names a metric"),
    fault("as_returned", "no value is checked", AsReturned, _VALUE, "a result has score=nan, which is not a finite"),
    fault(
        "raw_parts", "no component is checked", ComponentsAsReturned, "no_component_is_nan", "a result has format=nan"
    ),
    fault(
        "raw_numbers", "no number is converted", NumbersAsReturned, "numbers_of_any_type", "not a finite int or float"
    ),
    fault("whole_numbers", "a share becomes 0", WholeNumbers, "numbers_of_any_type", "gave the scores [0.0, 0.0"),
    fault("score_alone", "components are lost", ScoreAlone, "components_and_extracted", "format=0.25 came as {}"),
    fault("same_row", "all have one extra_info", SameRow, "scorer_is_handed_its_row", "was to be called with"),
    fault("strips", "a response is stripped", Strips, "scorer_is_handed_its_row", "was to be called with (' 0"),
    fault("through_json", "tuples become lists", ThroughJson, "scorer_is_handed_its_row", "'1': ['a', None]"),
    fault("pops", "it changes extra_info", Pops, "requests_unchanged", "a row's values are shared by its responses"),
]
