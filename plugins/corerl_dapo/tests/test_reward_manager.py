import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from corerl.contracts.reward_managers import RewardRequest
from corerl.errors import RunError
from corerl.plugins import Plugins
from corerl_dapo.options import DapoOptions
from corerl_dapo.reward_manager import DapoRewardManager


def right(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> dict[str, Any]:
    return {"score": float(response == ground_truth), "short": 1.0, "extracted": response}


def manager(scorer: Callable[..., Any] = right, timeout: float = 10.0, **options: Any) -> DapoRewardManager:
    return DapoRewardManager(
        {"s": scorer}, num_workers=2, timeout=timeout, options=DapoOptions(**{"scoring": "naive"} | options)
    )


def request(length: int, largest: int = 100, response: str = "42") -> RewardRequest:
    return RewardRequest(response, "42", "s", response_length=length, max_response_length=largest)


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0)],
)
def test_the_papers_numbers_are_the_default(length: int, penalty: float) -> None:
    (result,) = manager().score([request(length, 20480)])
    assert result.score == 1 + penalty
    assert result.components == {
        "short": 1.0,
        "overlong_penalty": penalty,
        "overlong": float(penalty < 0),
        "score_before_penalty": 1.0,
    }
    assert (result.extracted, result.error) == ("42", None)


@pytest.mark.parametrize(("length", "penalty"), [(60, 0.0), (70, -0.5), (80, -1.0), (100, -2.0)])
def test_buffer_and_factor_are_options(length: int, penalty: float) -> None:
    (result,) = manager(overlong_buffer_len=40, overlong_penalty_factor=2.0).score([request(length)])
    assert result.score == pytest.approx(1 + penalty, rel=1e-12)


def test_a_buffer_of_the_whole_length_is_allowed() -> None:
    (result,) = manager(overlong_buffer_len=100).score([request(25)])
    assert result.score == 0.75


@pytest.mark.parametrize(("response", "before"), [("42", 1.0), ("41", -1.0)])
def test_plus_minus_one_comes_before_the_penalty(response: str, before: float) -> None:
    (result,) = manager(plus_minus_one=True).score([request(90, response=response)])
    assert (result.score, result.components["score_before_penalty"]) == (before - 0.5, before)


def test_max_resp_len_takes_the_place_of_the_runs_and_the_penalty_stops_there() -> None:
    results = manager(max_resp_len=50, overlong_buffer_len=10).score([request(45), request(50), request(100)])
    assert [result.components["overlong_penalty"] for result in results] == [-0.5, -1.0, -1.0]
    (result,) = manager(max_resp_len=50, overlong_buffer_len=10).score([request(45, largest=0)])
    assert result.score == 0.5


def test_an_unknown_largest_length_is_an_error_of_the_sample() -> None:
    unknown, known = manager().score([request(5, largest=0), request(5)])
    assert (unknown.score, known.score) == (None, 1.0)
    assert unknown.error and "does not know the largest length of a response" in unknown.error


def test_a_buffer_longer_than_a_response_ends_the_run_before_anything_is_scored() -> None:
    def never(*_: Any) -> float:
        raise AssertionError

    with pytest.raises(RunError, match=r"^reward.manager.overlong_buffer_len: 4096 tokens are more than the 512 of"):
        manager(never, overlong_buffer_len=4096).score([request(5, 8192), request(5, 512)])


def test_a_very_short_largest_length_has_a_buffer_of_one_token() -> None:
    results = manager().score([request(2, largest=3), request(3, largest=3)])
    assert [result.score for result in results] == [1.0, 0.0]


def test_failed_results_stay_failed() -> None:
    def scorer(response: str, *_: Any) -> float:
        if response == "raise":
            raise ValueError("no such answer")
        if response == "sleep":
            time.sleep(5)
        return float(response)

    responses = ["0.5", "raise", "nan", "sleep", "1"]
    results = manager(scorer, timeout=0.3, plus_minus_one=True).score(
        [request(100, response=response) for response in responses]
    )
    assert [result.score for result in results] == [-1.0, None, None, None, 0.0]
    assert [result.error is None for result in results] == [True, False, False, False, True]
    assert str(results[1].error).startswith("the scorer of 's' raised ValueError: no such answer")
    assert results[1].components == {}


def test_a_registered_scorer_scores() -> None:
    registries = Plugins().registries
    factory = registries.reward_managers.select({"name": "dapo", "overlong_buffer_len": 10}).load()
    scorers = {"openai/gsm8k": registries.scorers.select("gsm8k").load()}
    dapo = factory(scorers, num_workers=2, timeout=10)
    results = dapo.score(
        [
            RewardRequest(text, "18", source, response_length=95, max_response_length=100)
            for text, source in [("so #### 18", "openai/gsm8k"), ("so #### 9", "openai/gsm8k"), ("#### 18", "other")]
        ]
    )
    dapo.close()
    assert [result.score for result in results] == [0.5, -0.5, None]
