"""The checks of reward managers, held against ``naive`` with one mistake each."""

import functools
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from corerl.registry.base import Entry, Owner, Selected
from corerl.registry.reward_managers import RewardManager, RewardRequest, RewardResult
from corerl.registry.scorers import Scorer
from corerl.testing import reward_harness, reward_managers
from corerl.testing.results import CheckFailed, CheckSkipped

Naive: Any = pytest.importorskip("corerl_rewards.naive").NaiveRewardManager


class Good:
    """``naive`` itself; subclasses change what goes in or comes out."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        self.naive: RewardManager = Naive(scorers, num_workers=num_workers, timeout=timeout)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return self.naive.score(requests)

    def close(self) -> None:
        self.naive.close()


class Shifted(Good):
    """Subtracts a penalty, as overlong shaping does."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        results = super().score(requests)
        return [each if each.score is None else replace(each, score=each.score - 0.5) for each in results]


class Length(Good):
    """Does not listen to the scorers."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [RewardResult(-float(request.response_length)) for request in requests]


class Reversed(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return super().score(requests)[::-1]


class ReversedLength(Length):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return super().score(requests)[::-1]


class AsTheyEnd(Good):
    """Results in the order in which the scorers end."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        slowness = [request.extra_info.get("seconds", 0.0) for request in requests]
        order = sorted(range(len(requests)), key=lambda n: slowness[n])
        results = super().score(requests)
        return [results[n] for n in order]


class DropsFailed(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [result for result in super().score(requests) if result.error is None]


class DropsLast(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return super().score(requests)[: max(1, len(requests) - 1)]


class NeverNothing(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return super().score(requests) or [RewardResult(None, error="no requests")]


class ZeroForFailed(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [RewardResult(0.0) if result.error else result for result in super().score(requests)]


class ScoreAndError(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [replace(result, score=0.0) if result.error else result for result in super().score(requests)]


class WithTraceback(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        results = super().score(requests)
        return [replace(each, error=f"Traceback\n{each.error}") if each.error else each for each in results]


class Inline(Good):
    """Calls the scorers one after the other, and trusts them."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        self.scorers = scorers

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [self.one(each) for each in requests]

    def one(self, request: RewardRequest) -> RewardResult:
        value: Any = self.scorers[request.data_source](
            request.response, request.ground_truth, request.data_source, request.extra_info
        )
        if isinstance(value, Mapping):
            parts = {name: part for name, part in value.items() if name not in ("score", "extracted")}
            return RewardResult(value.get("score", 0.0), parts, value.get("extracted"))
        return RewardResult(value)

    def close(self) -> None:
        pass


class CatchesExceptions(Inline):
    def one(self, request: RewardRequest) -> RewardResult:
        try:
            return super().one(request)
        except Exception as error:
            return RewardResult(None, error=type(error).__name__)


class ScoreAlone(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [replace(result, components={}, extracted=None) for result in super().score(requests)]


class SameRow(Good):
    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return super().score([replace(request, extra_info=requests[0].extra_info) for request in requests])


class OneDeadline(Good):
    """The timeout is that of the batch."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=30.0)
        self.timeout = timeout

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        started = time.monotonic()
        results = super().score(requests)
        late = time.monotonic() - started > self.timeout
        return [RewardResult(None, error="late") if late else result for result in results]


class NoDeadline(Good):
    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=1000.0)


class OneWorker(Good):
    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=1, timeout=timeout)


class ManyWorkers(Good):
    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=8, timeout=timeout)


class LateArrivals(Good):
    """A score that came too late is given to the first request of the next batch."""

    late = False

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        results = super().score(requests)
        if self.late:
            results[0] = RewardResult(900.0)
        self.late = results[0].score is None
        return results


class CloseHangs(Good):
    def close(self) -> None:
        time.sleep(5)


class Partwise(Good):
    def submit(self, requests: Sequence[RewardRequest]) -> Any:
        return self.naive.submit(requests)  # type: ignore[attr-defined]


class PartSize(Partwise):
    """Adds what depends on the part."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return [replace(each, score=(each.score or 0.0) + len(requests)) for each in super().score(requests)]


class OnePartAtATime(Partwise):
    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=timeout)
        self.pool = ThreadPoolExecutor(1)

    def submit(self, requests: Sequence[RewardRequest]) -> Any:
        return self.pool.submit(self.score, requests)


class WorkersOfEachPart(Partwise):
    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        super().__init__(scorers, num_workers=num_workers, timeout=timeout)
        self.new = functools.partial(Naive, scorers, num_workers=num_workers, timeout=timeout)

    def submit(self, requests: Sequence[RewardRequest]) -> Any:
        return self.new().submit(requests)


def run(manager: Any, name: str) -> None:
    dict(reward_managers.checks(Selected(Entry("reward manager", "m", manager, Owner("tests")))))[name]()


NAMES = [name for name, _ in reward_managers.checks(Selected(Entry("reward manager", "m", Good, Owner("tests"))))]


PARTS = ["parts_are_scored_alike", "num_workers_at_a_time_over_parts", "a_part_that_hangs_holds_up_no_other"]


@pytest.mark.parametrize("name", sorted({*NAMES} - {*PARTS}))
def test_a_manager_that_shifts_scores_passes(name: str) -> None:
    run(Shifted, name)


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_for_managers_that_take_them(name: str) -> None:
    run(Partwise, name)
    with pytest.raises(CheckSkipped, match=r"it has no submit\(\)"):
        run(Good, name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != PARTS[0]])
def test_a_manager_that_does_not_listen_to_the_scorers_passes_over_their_checks(name: str) -> None:
    if NAMES.index(name) < NAMES.index("order_of_slow_scorers"):
        run(Length, name)
    else:
        with pytest.raises(CheckSkipped, match="do not depend on the scorers"):
            run(Length, name)


@pytest.mark.parametrize(
    ("manager", "name", "words"),
    [
        (DropsLast, "one_result_a_request", "2 requests gave 1 results"),
        (NeverNothing, "empty_batch", "0 requests gave 1 results"),
        (Reversed, "results_follow_the_requests", "results must come in the order of the requests"),
        (ReversedLength, "results_follow_the_requests", "results must come in the order of the requests"),
        (Reversed, "order_of_slow_scorers", r"came as \[700.0, 600.0"),
        (AsTheyEnd, "order_of_slow_scorers", r"came as \[700.0, 600.0"),
        (DropsFailed, "exceptions_are_errors", "9 requests gave 5 results: there must be a list with one result for"),
        (ZeroForFailed, "exceptions_are_errors", r"raises ValueError\(.* gave the score 0.0: it must give an error"),
        (ZeroForFailed, "exit_is_an_error", r"raises SystemExit gave the score 0.0: it must give an error"),
        (ZeroForFailed, "no_number_is_an_error", "returns NaN gave the score 0.0: it must give an error"),
        (ZeroForFailed, "unknown_data_source_is_an_error", "without a scorer gave the score 0.0"),
        (ZeroForFailed, "hanging_scorer_is_an_error", "a scorer that hangs gave the score 0.0"),
        (ScoreAndError, "exceptions_are_errors", "has score 0.0 and error .* exactly one must be None"),
        (WithTraceback, "exceptions_are_errors", "must be one line that says what went wrong"),
        (Inline, "no_number_is_an_error", "a result has score=nan, which is not a finite number"),
        (Inline, "no_component_is_nan", "a result has format=nan, which is not a finite number"),
        (ScoreAlone, "components_and_extracted", "component format=0.25 came as {}"),
        (SameRow, "scorer_is_handed_its_row", r"called with .*'index': 1.* says .*'index': 0"),
        (OneDeadline, "deadline_of_each_score", "ran past a timeout of 0.8 s: it is for each score"),
        (NoDeadline, "hanging_scorer_is_an_error", "the scoring of 6 requests had not ended after 0.7 s"),
        (NoDeadline, "late_score_is_dropped", "took 0.7 s with a timeout of 0.4 s gave the score 900"),
        (LateArrivals, "late_score_is_dropped", r"after a late scorer, scores .* came as \[900.0, 100.0"),
        (OneWorker, "num_workers_at_a_time", "at most 1 ran at a time"),
        (ManyWorkers, "num_workers_at_a_time", "at most 8 ran at a time"),
        (PartSize, "parts_are_scored_alike", "got other results than the whole batch"),
        (OnePartAtATime, "a_part_that_hangs_holds_up_no_other", "a part of 2 requests had not ended after 0.3 s"),
        (WorkersOfEachPart, "num_workers_at_a_time_over_parts", r"at most \d+ ran at a time"),
        (CloseHangs, "close_ends", r"close\(\) had not ended after 0.1 s"),
    ],
)
def test_a_mistake_is_caught(manager: Any, name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if manager in (NoDeadline, CloseHangs):
        monkeypatch.setattr(reward_managers, "PATIENCE", 0.1)
        monkeypatch.setattr(reward_harness, "PATIENCE", 0.1)
    if manager is OnePartAtATime:
        monkeypatch.setattr(reward_managers, "HANG", 0.6)
    with pytest.raises(CheckFailed, match=words):
        run(manager, name)


class Processes(Good):
    """Scores in other processes: scorers, requests and results are pickled."""

    def __init__(self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float) -> None:
        self.pool = ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("fork"))
        self.scorers = dict(scorers)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        return list(self.pool.map(functools.partial(score_inline, self.scorers), requests))

    def close(self) -> None:
        self.pool.shutdown()


def score_inline(scorers: Mapping[str, Scorer], request: RewardRequest) -> RewardResult:
    return CatchesExceptions(scorers, num_workers=1, timeout=1.0).one(request)


@pytest.mark.parametrize("name", ["order_of_slow_scorers", "exceptions_are_errors", "num_workers_at_a_time"])
def test_a_manager_with_processes_passes(name: str) -> None:
    run(Processes, name)


@pytest.mark.parametrize(("manager", "raised"), [(Inline, ValueError), (CatchesExceptions, SystemExit)])
def test_what_a_manager_lets_through_is_raised(manager: Any, raised: type[BaseException]) -> None:
    """:mod:`corerl.testing.checks` turns it into a failed check."""
    with pytest.raises(raised):
        run(manager, "exceptions_are_errors" if raised is ValueError else "exit_is_an_error")


def test_the_checks_import_no_torch() -> None:
    program = "import sys, corerl.testing.reward_managers, corerl.testing.scorers; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
