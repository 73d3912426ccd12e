import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.errors import PluginError
from corerl_rewards.batch import BatchRewardManager
from corerl_rewards.options import BatchOptions

HERE = __file__
CALLS: list[int] = []


def ranks(
    responses: Sequence[str], truths: Sequence[Any], sources: Sequence[str], extras: Sequence[Mapping[str, Any]]
) -> list[Any]:
    """The place of each response by its length: what no single response knows."""
    CALLS.append(len(responses))
    order = sorted(range(len(responses)), key=lambda row: len(responses[row]))
    return [{"score": order.index(row), "extracted": f"{truths[row]} {sources[row]} {extras[row]}"} for row in order]


def by_row(responses: Sequence[str], *_: Any) -> list[Any]:
    return [ValueError("bad row") if response == "bad" else float(response) for response in responses]


def raising(*_: Any) -> list[Any]:
    raise RuntimeError("out of order")


def short(*_: Any) -> list[Any]:
    return [1.0]


def hanging(*_: Any) -> list[Any]:
    time.sleep(5)
    return []


def manager(function: str, **options: Any) -> BatchRewardManager:
    chosen = BatchOptions(function=f"{HERE}:{function}", **options)
    return BatchRewardManager({}, num_workers=2, timeout=10.0, options=chosen)


def requests(*responses: str) -> list[RewardRequest]:
    return [RewardRequest(response, "truth", "s", {"index": 1}) for response in responses]


def test_the_function_is_called_once_with_the_whole_batch() -> None:
    results = manager("ranks").score(requests("a", "bb", "ccc"))
    assert [result.score for result in results] == [0.0, 1.0, 2.0]
    assert results[0].extracted == "truth s {'index': 1}"


def test_an_exception_in_the_list_is_an_error_of_that_sample() -> None:
    first, second, third = manager("by_row").score(requests("1", "bad", "3"))
    assert (first, third) == (RewardResult(1.0), RewardResult(3.0))
    assert (second.error_kind, second.error) == ("exception", "the scorer of 's' raised ValueError: bad row")


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [("raising", "exception", "out of order"), ("short", "value", "returned 1 scores for 3 responses")],
)
def test_a_function_that_fails_is_an_error_of_all_samples(function: str, kind: str, words: str) -> None:
    for result in manager(function).score(requests("1", "2", "3")):
        assert (result.score, result.error_kind) == (None, kind)
        assert words in str(result.error)


def test_a_function_that_hangs_is_an_error_at_its_deadline() -> None:
    start = time.monotonic()
    results = manager("hanging", batch_timeout=0.3).score(requests("1", "2"))
    assert time.monotonic() - start < 3.0
    assert {result.error_kind for result in results} == {"timeout"}


def test_batch_size_cuts_the_batch() -> None:
    results = manager("by_row", batch_size=2).score(requests(*map(str, range(5))))
    assert [result.score for result in results] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_function_that_cannot_be_imported_is_an_error_at_once() -> None:
    with pytest.raises(PluginError, match=r"reward\.manager\.function: .*has no 'rank'"):
        manager("rank")
