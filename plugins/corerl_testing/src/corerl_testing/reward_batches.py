"""Checks of reward managers with batches of many requests, and of requests that are nearly equal."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from corerl.contracts.reward_managers import RewardManagerFactory, RewardRequest
from corerl.registry import Selected
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.reward_harness import HANG, Manager, ascending, ask, by_truth, high, low

SIZES = (3, 33, 64, 65, 129)
MANY = 300
SLOW = (0, 7, 100, 101, 255, 256, 298)
LATE = (50, 150, 257)
"""among the many requests, those whose scorers take 0.3 s, and those whose scorers hang"""

DEADLINE = 2.0

MANY_SECONDS = 60.0
"""seconds for many requests"""


def _many_requests(selected: Selected[RewardManagerFactory]) -> None:
    """Distinct answers, slow and late ones among them: none is lost, given twice or given to another request."""
    seconds = dict.fromkeys(SLOW, 0.3) | dict.fromkeys(LATE, HANG)
    requests = [ask(str(n), seconds=seconds.get(n, 0.0)) for n in range(MANY)]
    with Manager(selected, workers=8, timeout=DEADLINE) as manager:
        for size in SIZES:
            _expect_ascending(manager, [ask(str(n)) for n in range(size)], f"the response, {size} at a time,")
        results = manager.score(requests, MANY_SECONDS)
    failed = [n for n, result in enumerate(results) if result.score is None]
    if failed != list(LATE):
        raise CheckFailed(
            f"of {MANY} requests, numbers {list(LATE)} were late, and numbers {failed} came without score"
        )
    scores = [result.score for result in results if result.score is not None]
    for n, (one, following) in enumerate(pairwise(scores)):
        if one >= following:
            raise CheckFailed(
                f"of {MANY} requests whose scores rise, number {n} came with {one:g} and the next one with "
                f"{following:g}: each result must be that of its request"
            )


def _equal_responses(selected: Selected[RewardManagerFactory]) -> None:
    """Responses are equal; the rest of the row differs, within a batch and between batches."""
    with Manager(selected, by_truth) as manager:
        for batch in ([1, 2, 3], [4, 5, 6]):
            _expect_ascending(manager, [ask("same", truth=truth) for truth in batch], "ground_truth")
        _expect_ascending(manager, [ask("same", truth=1), ask("same", source="other", truth=1)], "data_source")
        first = manager.score([ask("same", truth=9)])[0].score
        second = manager.score([ask("same", truth=8)])[0].score
        if first is None or second is None or second >= first:
            raise CheckFailed(f"equal responses in two batches, the second with a lower score, gave {first}, {second}")
    with Manager(selected) as manager:
        _expect_ascending(manager, [ask("1", returns=score) for score in (1, 2, 3)], "extra_info")


def _expect_ascending(manager: Manager, requests: list[RewardRequest], what: str) -> None:
    scores = [result.score for result in manager.score(requests)]
    if not ascending(scores):
        raise CheckFailed(f"requests that differ in {what} alone, with scores that rise, gave {scores}")


def _numbers_of_any_type(selected: Selected[RewardManagerFactory]) -> None:
    """Scorers return the number types that they compute with."""
    numbers = [False, *_numpy_numbers(), True, 2]
    with Manager(selected) as manager:
        plain = manager.score([ask(returns=number) for number in numbers])
        mapped = manager.score([ask(returns={"score": number, "part": number}) for number in numbers])
    for results in (plain, mapped):
        scores = [result.score for result in results]
        if not ascending(scores):
            shown = ", ".join(f"{number!r} ({type(number).__name__})" for number in numbers)
            raise CheckFailed(f"scorers that return {shown} gave the scores {scores}")


def _numpy_numbers() -> list[Any]:
    try:
        import numpy
    except ModuleNotFoundError:
        return [0.25, 0.5]
    return [numpy.float32(0.25), numpy.float64(0.5), numpy.float16(0.75)]


def _managers_apart(selected: Selected[RewardManagerFactory]) -> None:
    """Training and validation have separate managers."""
    with Manager(selected, low) as first:
        [alone] = first.score([ask()])
        with Manager(selected, high) as second:
            [other] = second.score([ask()])
            if first.score([ask()]) != [alone]:
                raise CheckFailed("a manager scores with the scorers of another one that was made after it")
        if other == alone and other.error is None:
            raise CheckFailed("a second manager, with other scorers, gives what the first one gave")
        if first.score([ask()]) != [alone]:
            raise CheckFailed("a manager is another one after a second one was closed")


def _one_alone(selected: Selected[RewardManagerFactory]) -> None:
    """In a manager that takes parts, a single first request is scored as among others."""
    requests = [ask(str(100 * n), length=5 + 100 * n, truth=n) for n in range(40)]
    with Manager(selected) as manager:
        if not manager.takes_parts:
            raise CheckSkipped("it has no submit(): a score may depend on the batch")
        whole = manager.score(requests)
    for n in (33, 0):
        with Manager(selected) as manager:
            [alone] = manager.score([requests[n]])
        if alone != whole[n]:
            raise CheckFailed(f"a request alone gave {alone}, and {whole[n]} among 40")


CHECKS: dict[str, Callable[[Selected[RewardManagerFactory]], None]] = {
    "many_requests": _many_requests,
    "equal_responses_are_scored_apart": _equal_responses,
    "numbers_of_any_type": _numbers_of_any_type,
    "managers_do_not_meet": _managers_apart,
    "one_alone": _one_alone,
}
