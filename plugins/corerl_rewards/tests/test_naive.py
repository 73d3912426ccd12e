import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.errors import RunError
from corerl.registry.coroutines import blocking
from corerl_rewards.naive import NaiveRewardManager


def manager(scorer: Callable[..., Any], num_workers: int = 4, timeout: float = 10.0) -> NaiveRewardManager:
    return NaiveRewardManager({"s": scorer}, num_workers=num_workers, timeout=timeout)


def requests(*responses: str) -> list[RewardRequest]:
    return [RewardRequest(response, "truth", "s") for response in responses]


def returning(value: Any) -> Scorer:
    def scorer(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> Any:
        return value

    return scorer


def sleeping(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    time.sleep(float(response))
    return 1.0


def as_number(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    return float(response)


@pytest.mark.parametrize("num_workers", [1, 3, 64])
def test_results_come_in_the_order_of_the_requests(num_workers: int) -> None:
    def slow_when_even(response: str, *_: Any) -> float:
        time.sleep(0.002 * (int(response) % 2 == 0))
        return float(response)

    results = manager(slow_when_even, num_workers).score(requests(*map(str, range(50))))
    assert [result.score for result in results] == list(map(float, range(50)))


def test_a_scorer_that_raises_is_an_error_of_that_sample_alone() -> None:
    good, bad, other = manager(as_number).score(requests("1", "one", "2"))
    assert (good.score, other.score) == (1.0, 2.0)
    assert bad.score is None
    line = as_number.__code__.co_firstlineno + 1
    reason = "raised ValueError: could not convert string to float: 'one'"
    assert bad.error == f"the scorer of 's' {reason} ({__file__}, line {line})"


def test_even_an_exit_in_a_scorer_is_an_error_of_that_sample() -> None:
    def leave(*_: Any) -> float:
        sys.exit("bye\nbye")

    assert "the scorer of 's' raised SystemExit: bye bye (" in manager(leave).score(requests("x"))[0].error


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (None, "None"),
        ("1.0", "'1.0'"),
        ([1.0], "[1.0]"),
        (10**400, "1000"),
        ({"score": "1"}, "score='1'"),
        ({"score": 1.0, "format": float("nan")}, "format=nan"),
    ],
)
def test_what_is_not_a_finite_number_is_an_error(value: Any, shown: str) -> None:
    result = manager(returning(value)).score(requests("x"))[0]
    assert result.score is None
    assert result.error is not None
    assert result.error.startswith(f"the scorer of 's' returned {shown}")
    assert result.error.endswith(", which is not a finite number")


def test_a_mapping_without_score_is_an_error() -> None:
    result = manager(returning({"acc": 1.0})).score(requests("x"))[0]
    error = "the scorer of 's' returned a mapping without 'score': ['acc']"
    assert result == RewardResult(None, error=error, error_kind="value")


@pytest.mark.parametrize("value", [1, True, np.float32(1.0), np.int64(1), np.bool_(True)])
def test_any_kind_of_number_is_a_score(value: Any) -> None:
    result = manager(returning(value)).score(requests("x"))[0]
    assert result == RewardResult(1.0)
    assert type(result.score) is float


async def slowly(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    await asyncio.sleep(0.01)
    return float(response)


def test_a_coroutine_function_is_a_scorer() -> None:
    good, bad = manager(blocking(slowly)).score(requests("2", "x"))
    assert (good.score, bad.error_kind) == (2.0, "exception")


@pytest.mark.parametrize(
    ("error", "kind"), [(MemoryError(), "memory"), (TimeoutError("x"), "timeout"), (KeyError("x"), "exception")]
)
def test_what_a_scorer_raises_has_a_kind(error: Exception, kind: str) -> None:
    def raising(*_: Any) -> float:
        raise error

    assert manager(raising).score(requests("x"))[0].error_kind == kind


def test_further_keys_are_components() -> None:
    value = {"score": 0.5, "format": 1, "length": 2.5, "extracted": None}
    result = manager(returning(value)).score(requests("x"))[0]
    assert result == RewardResult(0.5, {"format": 1.0, "length": 2.5}, None)


def test_an_unknown_data_source_is_an_error_that_names_it() -> None:
    result = manager(as_number).score([RewardRequest("1", "", "acme/trivia")])[0]
    error = "no scorer for data source 'acme/trivia'; known data sources: s"
    assert result == RewardResult(None, error=error, error_kind="unscored")


def test_a_scorer_past_its_deadline_is_an_error_and_the_others_are_scored() -> None:
    start = time.monotonic()
    results = manager(sleeping, num_workers=2, timeout=0.2).score(requests("3", "0", "3", "0", "3", "0"))
    assert time.monotonic() - start < 2.5  # three hung threads, two at a time: 0.2 s and 0.2 s
    assert [result.score for result in results] == [None, 1.0, None, 1.0, None, 1.0]
    assert results[0].error == "the scorer of 's' ran past reward.timeout (0.2 s)"


def test_a_hung_scorer_does_not_keep_the_process_alive() -> None:
    program = (
        "import time\n"
        "from corerl.contracts.reward_managers import RewardRequest\n"
        "from corerl_rewards.naive import NaiveRewardManager\n"
        "naive = NaiveRewardManager({'s': lambda *_: time.sleep(60)}, num_workers=2, timeout=0.1)\n"
        "print(naive.score([RewardRequest('', '', 's')])[0].error)\n"
        "naive.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "the scorer of 's' ran past reward.timeout (0.1 s)"


def test_close_ends_the_wait_of_who_still_waits() -> None:
    def forever(*_: Any) -> float:
        time.sleep(60)
        return 1.0

    naive = manager(forever, num_workers=1, timeout=60.0)
    future = naive.submit(requests("x", "y"))
    time.sleep(0.2)
    naive.close()
    with pytest.raises(RunError, match="the calls were given up: their queue is closed"):
        future.result(5)  # type: ignore[call-arg]


def test_a_value_that_raises_when_it_is_read_is_an_error_at_once() -> None:
    class Two:
        def __float__(self) -> float:
            raise RuntimeError("two elements are no number")

    result = manager(returning(Two()), timeout=60.0).score(requests("x"))[0]
    assert result.error_kind == "exception"
    assert "raised RuntimeError: two elements are no number" in str(result.error)


NO_MORE_THREADS = """
import resource, time
from corerl.contracts.reward_managers import RewardRequest
from corerl_rewards.naive import NaiveRewardManager

def hang(*_):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))  # no stack for another thread
    time.sleep(60)

naive = NaiveRewardManager({"s": hang}, num_workers=1, timeout=0.3)
try:
    naive.submit([RewardRequest("x", "", "s")] * 3).result(20)
except BaseException as error:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(type(error).__name__, error)
"""


def test_when_no_thread_can_take_the_place_of_one_that_hangs_nobody_waits_for_ever() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_MORE_THREADS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "RunError the calls were given up: can't start new thread"
