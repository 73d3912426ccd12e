"""Managers that give a request the result of another one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from planted.fault import Fault
from planted.reward_managers.right import Right, Whole, fault

Requests = Sequence[RewardRequest]
Results = list[RewardResult]


class Slots(Whole):
    """256 places for results."""

    def score(self, requests: Requests) -> Results:
        slots: dict[int, RewardResult] = {}
        for n, result in enumerate(super().score(requests)):
            slots[n % 256] = result
        return [slots[n % 256] for n in range(len(requests))]


class SwapsLate(Whole):
    """The result after a late one is that of its neighbour."""

    def score(self, requests: Requests) -> Results:
        results = super().score(requests)
        for n, result in enumerate(results[:-2]):
            if result.error_kind == "timeout" and len(requests) > 20:
                results[n + 1], results[n + 2] = results[n + 2], results[n + 1]
        return results


class GivenUpTogether(Whole):
    """All requests in a chunk of sixteen with a late one are late."""

    def score(self, requests: Requests) -> Results:
        results = super().score(requests)
        late = {n // 16 for n, result in enumerate(results) if result.error_kind == "timeout" and len(results) > 16}
        return [RewardResult(None, error="late") if n // 16 in late else each for n, each in enumerate(results)]


class ByResponse(Whole):
    """Equal responses of a batch are scored once."""

    def score(self, requests: Requests) -> Results:
        first = {request.response: request for request in reversed(requests)}
        scored = dict(zip(first, super().score([*first.values()]), strict=True))
        return [scored[request.response] for request in requests]


class ByTruth(Whole):
    """Equal responses with equal ground truths are scored once, even with different data sources."""

    def score(self, requests: Requests) -> Results:
        keys = [f"{each.response} {each.ground_truth} {each.extra_info}" for each in requests]
        scored = dict(zip(reversed(keys), super().score(requests[::-1]), strict=True))
        return [scored[key] for key in keys]


class WithoutInfo(Whole):
    """Equal responses with equal ground truths and data sources are scored once, even with different extra_info."""

    def score(self, requests: Requests) -> Results:
        keys = [f"{each.response} {each.ground_truth} {each.data_source}" for each in requests]
        scored = dict(zip(reversed(keys), super().score(requests[::-1]), strict=True))
        return [scored[key] for key in keys]


class FromBatchToBatch(Right):
    """Remembers the score of a response from one batch to the next."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=timeout)
        self.known: dict[str, RewardResult] = {}

    def one(self, request: RewardRequest) -> RewardResult:
        key = f"{request.response} {request.data_source} {request.extra_info}"
        return self.known.setdefault(key, super().one(request))


class ScorersOfTheClass(Right):
    """The last manager's scorers are those of all."""

    all_scorers: ClassVar[Mapping[str, Scorer]] = {}

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=timeout)
        ScorersOfTheClass.all_scorers = scorers

    def call(self, request: RewardRequest) -> Any:
        self.scorers = ScorersOfTheClass.all_scorers
        return super().call(request)


_LARGEST: list[float] = []


class LargestOfTheProcess(Right):
    """Scores are shares of the first one that the process saw."""

    def result(self, value: Any) -> RewardResult:
        result = super().result(value)
        assert result.score is not None
        _LARGEST.append(abs(result.score) + 1)
        return replace(result, score=result.score / _LARGEST[0])


class MeanOfTheBatch(Right):
    """Subtracts half the mean of the batch, although it accepts parts."""

    def score(self, requests: Requests) -> Results:
        results = super().score(requests)
        mean = sum(each.score or 0.0 for each in results) / max(1, len(results))
        return [each if each.score is None else replace(each, score=each.score - mean / 2) for each in results]


class PartSize(Right):
    """Adds the number of requests, although it accepts parts."""

    def score(self, requests: Requests) -> Results:
        results = super().score(requests)
        return [each if each.score is None else replace(each, score=each.score + len(requests)) for each in results]


_EQUAL = "equal_responses_are_scored_apart"

FAULTS: list[Fault] = [
    fault("slots", "there are 256 places", Slots, "many_requests", "of 300 requests, numbers [50, 150, 257] were late"),
    fault("swaps_late", "results after a late one are swapped", SwapsLate, "many_requests", "that of its request"),
    fault(
        "given_up_together",
        "a late request takes its chunk along",
        GivenUpTogether,
        "many_requests",
        "and numbers [48, 49, 50",
    ),
    fault("by_response", "equal responses are one", ByResponse, _EQUAL, "differ in ground_truth alone"),
    fault("by_truth", "equal ground truths are one", ByTruth, _EQUAL, "differ in data_source alone"),
    fault("without_info", "extra_info is no difference", WithoutInfo, _EQUAL, "differ in extra_info alone"),
    fault("from_batch_to_batch", "a cache outlives its batch", FromBatchToBatch, _EQUAL, "ground_truth alone"),
    fault(
        "scorers_of_the_class", "objects share scorers", ScorersOfTheClass, "managers_do_not_meet", "was made after it"
    ),
    fault("largest", "the first score decides", LargestOfTheProcess, "same_in_a_fresh_process", "in another order"),
    fault("mean_of_the_batch", "a score depends on the others", MeanOfTheBatch, "one_alone", "a request alone gave"),
    fault(
        "part_size", "a score depends on the part", PartSize, "parts_are_scored_alike", "other results than the whole"
    ),
]
