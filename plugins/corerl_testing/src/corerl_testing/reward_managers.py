"""Checks of reward managers.

A request's ``extra_info`` controls its scorer (:mod:`corerl_testing.reward_harness`). Only the order of scores is
compared, because a manager may shift them. A manager that ignores the scorers skips the checks that need one.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from corerl.contracts.reward_managers import RewardManagerFactory, RewardRequest, RewardResult
from corerl.registry import Selected
from corerl_testing import reward_batches as batches
from corerl_testing.fresh import excerpt, same_in_a_fresh_process
from corerl_testing.results import CheckFailed, CheckSkipped, Run
from corerl_testing.reward_closing import close_ends, close_gives_back
from corerl_testing.reward_harness import HANG, PATIENCE, Manager, ascending, ask, high, low, timed, told

Check = Callable[[Selected[RewardManagerFactory]], None]

LONG = "x" * 3000
"""with blanks around it: a scorer gets the whole response"""

NOT_TWICE = "its scores are not the same twice"

UNUSABLE: Mapping[str, Any] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "None": None,
    "text": "1.0",
    "a list": [1.0],
    "a mapping without score": {"accuracy": 1.0},
    "a mapping whose score is text": {"score": "1"},
    "a mapping whose score is NaN": {"score": math.nan},
}


def checks(selected: Selected[RewardManagerFactory]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    count = cache(lambda: _scorers_count(selected))
    plain: dict[str, Check] = {
        "one_result_a_request": _one_result_a_request,
        "empty_batch": _empty_batch,
        "requests_unchanged": _requests_unchanged,
        "results_follow_the_requests": _results_follow_the_requests,
        "parts_are_scored_alike": _parts_are_scored_alike,
        "close_ends": close_ends,
        "close_gives_back_threads_and_processes": close_gives_back,
    }
    for name, run in plain.items():
        yield name, partial(run, selected)
    yield "same_in_a_fresh_process", partial(same_in_a_fresh_process, outcomes, selected)
    for name, run in (_WITH_SCORERS | batches.CHECKS).items():
        yield name, partial(_if_scorers_count, count, run, selected)


def _scorers_count(selected: Selected[RewardManagerFactory]) -> bool:
    results = []
    for scorer in (low, high):
        with Manager(selected, scorer) as manager:
            results.append(manager.score([ask()])[0])
    return results[0] != results[1] or results[0].error is not None


def _if_scorers_count(count: Callable[[], bool], run: Check, selected: Selected[RewardManagerFactory]) -> None:
    if not count():
        raise CheckSkipped("its scores do not depend on the scorers")
    run(selected)


def _one_result_a_request(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected) as manager:
        for count in (1, 2, 17):
            results = manager.score([ask(str(100 * n), length=5 + n) for n in range(count)])
            failed = [result.error for result in results if result.error is not None]
            if failed:
                raise CheckFailed(f"a request with a scorer that returns a number gave the error {failed[0]!r}")


def _requests_unchanged(selected: Selected[RewardManagerFactory]) -> None:
    """Ground truth and extra_info of a row are shared by all responses to its prompt."""
    requests = [ask(str(n), truth={"target": [n]}, index=n, tags=["a"]) for n in range(3)]
    before = copy.deepcopy(requests)
    with Manager(selected) as manager:
        manager.score(requests)
    for old, new in zip(before, requests, strict=True):
        if old != new:
            raise CheckFailed(f"it changed a request from {old} to {new}: a row's values are shared by its responses")


def outcomes(selected: Selected[RewardManagerFactory], backwards: bool = False) -> list[tuple[str, str]]:
    """Each of some requests, scored one by one, with the result."""
    requests = [ask(str(100 * n), length=5 + 1000 * n, truth={"target": n}) for n in range(6)]
    given = list(reversed(requests)) if backwards else requests
    with Manager(selected) as manager:
        found = [(f"the response {each.response!r}", repr(manager.score([each])[0])) for each in given]
    return found[::-1] if backwards else found


def _empty_batch(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected) as manager:
        manager.score([])


def _results_follow_the_requests(selected: Selected[RewardManagerFactory]) -> None:
    """The same requests in another order give the same results, in that order."""
    requests = [ask(str(100 * n), length=5 + 1000 * n) for n in range(12)]
    order = [n * 5 % 12 for n in range(12)]
    with Manager(selected) as manager:
        results = manager.score(requests)
        if manager.score(requests) != results:
            raise CheckSkipped(NOT_TWICE)
        permuted = manager.score([requests[n] for n in order])
    if permuted != [results[n] for n in order]:
        raise CheckFailed(
            "requests in another order gave other results: results must come in the order of the requests"
        )


def _order_of_slow_scorers(selected: Selected[RewardManagerFactory]) -> None:
    """The first requests take longest."""
    requests = [ask(str(100 * n), seconds=0.04 * (7 - n)) for n in range(8)]
    with Manager(selected) as manager:
        scores = [result.score for result in manager.score(requests)]
    if not ascending(scores):
        raise CheckFailed(f"scores that rise from request to request came as {scores}: the order must be the requests'")


def _scorer_is_handed_its_row(selected: Selected[RewardManagerFactory]) -> None:
    requests = [
        RewardRequest(f" {n}\n{LONG}\n ", {"target": n, 1: ("a", None)}, "source", {"index": n}, 8, 99)
        for n in range(5)
    ]
    with Manager(selected, told) as manager:
        results = manager.score(requests)
    for request, result in zip(requests, results, strict=True):
        expected = repr((request.response, request.ground_truth, request.data_source, dict(request.extra_info)))
        if result.extracted != expected:
            given = result.extracted or ""
            raise CheckFailed(
                f"a scorer was to be called with {excerpt(expected, given)}, and was with {excerpt(given, expected)}"
            )


def _components_and_extracted(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected, told) as manager:
        [result] = manager.score([ask("response")])
    for name, value in {"format": 0.25, "length": 7}.items():
        if result.components.get(name) != value:
            raise CheckFailed(f"a scorer's component {name}={value} came as {dict(result.components)}")
    if result.extracted is None:
        raise CheckFailed("the text that a scorer extracted is lost: it belongs in RewardResult.extracted")


def _spoilt(selected: Selected[RewardManagerFactory], bad: Mapping[str, RewardRequest]) -> None:
    """Each bad request, among good ones, gives an error; the good ones give scores."""
    requests = [ask("100"), *(each for request in bad.values() for each in (request, ask("100")))]
    with Manager(selected) as manager:
        results = manager.score(requests)
    for name, result in zip(bad, results[1::2], strict=True):
        if result.error is None:
            raise CheckFailed(f"a scorer that {name} gave the score {result.score}: it must give an error and no score")
    for result in results[::2]:
        if result.score is None:
            raise CheckFailed(f"a good request beside a scorer that {next(iter(bad))} gave the error {result.error!r}")


def _exceptions_are_errors(selected: Selected[RewardManagerFactory]) -> None:
    errors = (ValueError("first line\nsecond line"), AssertionError(), KeyError("answer"), RecursionError("deep"))
    _spoilt(selected, {f"raises {error!r}": ask(raises=error) for error in errors})


def _exit_is_an_error(selected: Selected[RewardManagerFactory]) -> None:
    _spoilt(selected, {"raises SystemExit": ask(raises=SystemExit(3))})


def _no_number_is_an_error(selected: Selected[RewardManagerFactory]) -> None:
    _spoilt(selected, {f"returns {name}": ask(returns=value) for name, value in UNUSABLE.items()})


def _no_component_is_nan(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected) as manager:  # which checks that results are finite
        manager.score([ask(returns={"score": 1.0, "format": number}) for number in (math.nan, -math.inf)])


def _unknown_data_source_is_an_error(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected) as manager:
        unknown, known = manager.score([ask(source="acme/unknown"), ask()])
    if unknown.error is None:
        raise CheckFailed(f"a data source without a scorer gave the score {unknown.score}: it must give an error")
    if known.score is None:
        raise CheckFailed(f"a request beside one without a scorer gave the error {known.error!r}")


def _hanging_scorer_is_an_error(selected: Selected[RewardManagerFactory]) -> None:
    requests = [ask("1", seconds=HANG * (n in (0, 3))) for n in range(6)]
    with Manager(selected, workers=2, timeout=0.3) as manager:
        results = manager.score(requests, 0.6 + PATIENCE)
    for n, result in enumerate(results):
        if n in (0, 3) and result.error is None:
            raise CheckFailed(f"a scorer that hangs gave the score {result.score}: past the timeout it is an error")
        if n not in (0, 3) and result.score is None:
            raise CheckFailed(f"a request beside scorers that hang gave the error {result.error!r}")


def _deadline_of_each_score(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected, workers=1, timeout=0.8) as manager:
        results = manager.score([ask(seconds=0.2) for _ in range(6)])
    if any(result.score is None for result in results):
        raise CheckFailed("six scores of 0.2 s, one after the other, ran past a timeout of 0.8 s: it is for each score")


def _late_score_is_dropped(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected, workers=1, timeout=0.4) as manager:
        [late] = manager.score([ask("900", seconds=0.7)])
        results = manager.score([ask(str(100 * n), seconds=0.08) for n in range(6)])
    if late.error is None:
        raise CheckFailed(f"a scorer that took 0.7 s with a timeout of 0.4 s gave the score {late.score}")
    scores = [result.score for result in results]
    if not ascending(scores):
        raise CheckFailed(f"after a late scorer, scores that rise from request to request came as {scores}")


def _parts_are_scored_alike(selected: Selected[RewardManagerFactory]) -> None:
    """Scores are equal one by one or at once, alone or in a whole batch."""
    requests = [ask(str(100 * n), length=5 + 1000 * n) for n in range(12)]
    with Manager(selected) as manager:
        parts = [result for part in manager.parts([requests[9:], [], requests[1:9], requests[:1]]) for result in part]
        whole = manager.score(requests)
        if manager.score(requests) != whole:
            raise CheckSkipped(NOT_TWICE)
    if parts != whole:
        raise CheckFailed("a batch in parts got other results than the whole batch: leave out submit()")


def _a_part_that_hangs_holds_up_no_other(selected: Selected[RewardManagerFactory]) -> None:
    hangs, good = [ask(seconds=HANG)], [ask("100"), ask("200")]
    with Manager(selected, workers=2, timeout=30.0) as manager:
        [result, _] = next(iter(manager.parts([hangs, good], HANG / 2)))
    if result.score is None:
        raise CheckFailed(f"a part beside one that hangs gave the error {result.error!r}")


def _num_workers_at_a_time(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected, timed, workers=3) as manager:
        _most_at_a_time(manager.score([ask(str(n), seconds=0.1) for n in range(12)]))


def _num_workers_at_a_time_over_parts(selected: Selected[RewardManagerFactory]) -> None:
    with Manager(selected, timed, workers=3) as manager:
        parts = manager.parts([[ask(str(n), seconds=0.1), ask(str(n + 6), seconds=0.1)] for n in range(6)])
        _most_at_a_time([result for part in parts for result in part])


def _most_at_a_time(results: Sequence[RewardResult]) -> None:
    spans = [(result.components["started"], result.components["ended"]) for result in results]
    most = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
    if most != 3:
        raise CheckFailed(f"with num_workers=3 and twelve slow scorers, at most {most} ran at a time")


_WITH_SCORERS: dict[str, Check] = {
    "order_of_slow_scorers": _order_of_slow_scorers,
    "scorer_is_handed_its_row": _scorer_is_handed_its_row,
    "components_and_extracted": _components_and_extracted,
    "exceptions_are_errors": _exceptions_are_errors,
    "exit_is_an_error": _exit_is_an_error,
    "no_number_is_an_error": _no_number_is_an_error,
    "no_component_is_nan": _no_component_is_nan,
    "unknown_data_source_is_an_error": _unknown_data_source_is_an_error,
    "hanging_scorer_is_an_error": _hanging_scorer_is_an_error,
    "deadline_of_each_score": _deadline_of_each_score,
    "late_score_is_dropped": _late_score_is_dropped,
    "num_workers_at_a_time": _num_workers_at_a_time,
    "num_workers_at_a_time_over_parts": _num_workers_at_a_time_over_parts,
    "a_part_that_hangs_holds_up_no_other": _a_part_that_hangs_holds_up_no_other,
}
