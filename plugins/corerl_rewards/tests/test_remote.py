import time
from itertools import pairwise
from typing import Any

import pytest

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.errors import ConfigError
from corerl_rewards.options import RemoteOptions
from corerl_rewards.remote import RemoteRewardManager
from plugins.corerl_rewards.tests.http_server import Server


def manager(url: str, num_workers: int = 4, timeout: float = 20.0, **options: Any) -> RemoteRewardManager:
    chosen = RemoteOptions(url=url, **{"backoff": 0.01, **options})
    return RemoteRewardManager({}, num_workers=num_workers, timeout=timeout, options=chosen)


def requests(*responses: str) -> list[RewardRequest]:
    return [RewardRequest(response, "truth", "acme/sums", {"index": 3}) for response in responses]


def as_numbers(body: Any, _: int) -> tuple[int, Any]:
    return 200, {"results": [float(sample["response"]) for sample in body["samples"]]}


def test_results_come_in_the_order_of_the_requests_and_in_batches() -> None:
    with Server(as_numbers) as server:
        results = manager(server.url, batch_size=4).score(requests(*map(str, range(10))))
    assert [result.score for result in results] == list(map(float, range(10)))
    assert sorted(len(body["samples"]) for body in server.bodies) == [2, 4, 4]


def test_the_server_is_told_everything_about_a_sample() -> None:
    prompt = [{"role": "user", "content": "6 · 7?"}]
    request = RewardRequest("42", {"target": 42}, "s", {"index": 1}, truncated=True, prompt=prompt)
    with Server(lambda *_: (200, {"results": [1]})) as server:
        assert manager(server.url + "/score").score([request]) == [RewardResult(1.0)]
    sample = {"prompt": prompt, "response": "42", "ground_truth": {"target": 42}, "data_source": "s"}
    assert server.bodies == [{"samples": [{**sample, "extra_info": {"index": 1}, "truncated": True}]}]
    assert server.paths == ["/score"]


def test_a_result_may_have_components_or_an_error() -> None:
    good = {"score": 0.5, "style": 2, "extracted": "x", "error": None}
    with Server(lambda *_: (200, {"results": [good, {"error": "no GPU"}, "1.0"]})) as server:
        first, second, third = manager(server.url).score(requests("a", "b", "c"))
    assert first == RewardResult(0.5, {"style": 2.0}, "x")
    assert (second.error_kind, second.error) == ("server", "the server could not score it: no GPU")
    assert third.error_kind == "value"


@pytest.mark.parametrize("failure", [(503, "busy"), (429, "slowly"), (500, "oops"), (0, None)])
def test_a_passing_failure_is_tried_again(failure: tuple[int, Any]) -> None:
    with Server(lambda body, number: as_numbers(body, 0) if number == 2 else failure) as server:
        assert manager(server.url).score(requests("7")) == [RewardResult(7.0)]
    assert len(server.bodies) == 3


def test_the_last_attempt_is_an_error_that_says_what_the_server_said() -> None:
    with Server(lambda *_: (503, "no worker is free")) as server:
        results = manager(server.url, retries=2).score(requests("1", "2"))
    assert len(server.bodies) == 3
    for result in results:
        assert (result.score, result.error_kind) == (None, "server")
        assert "503 Service Unavailable" in str(result.error)
        assert "no worker is free" in str(result.error)
        assert "the last of 3 attempts" in str(result.error)


def test_what_would_be_the_same_again_is_not_tried_again() -> None:
    with Server(lambda *_: (400, "bad sample")) as server:
        [result] = manager(server.url).score(requests("1"))
    assert (len(server.bodies), result.error_kind) == (1, "server")


def test_pauses_grow_and_retry_after_is_kept() -> None:
    with Server(lambda *_: (503, "busy"), {"Retry-After": "0.4"}) as server:
        manager(server.url, retries=2).score(requests("1"))
    assert all(later - earlier >= 0.4 for earlier, later in pairwise(server.times))


@pytest.mark.parametrize("answer", [b"<html>", [1.0], {"results": [1.0, 2.0]}, {"results": 1.0}])
def test_an_answer_that_is_none_is_an_error(answer: Any) -> None:
    with Server(lambda *_: (200, answer)) as server:
        [result] = manager(server.url).score(requests("1"))
    assert (result.score, result.error_kind) == (None, "server")


def test_a_server_that_hangs_is_an_error_at_the_deadline() -> None:
    def slow(body: Any, number: int) -> tuple[int, Any]:
        time.sleep(3)
        return as_numbers(body, number)

    with Server(slow) as server:
        start = time.monotonic()
        [result] = manager(server.url, timeout=0.5).score(requests("1"))
        took = time.monotonic() - start
    assert (result.score, result.error_kind) == (None, "timeout")
    assert took < 2.5


def test_no_server_is_an_error_within_the_deadline() -> None:
    with Server(as_numbers) as server:
        url = server.url
    start = time.monotonic()
    [result] = manager(url, timeout=2.0, retries=3).score(requests("1"))
    assert time.monotonic() - start < 4.0
    assert result.error_kind == "server"
    assert "refused" in str(result.error)


def test_num_workers_requests_are_under_way_at_a_time() -> None:
    def slow(body: Any, number: int) -> tuple[int, Any]:
        time.sleep(0.3)
        return as_numbers(body, number)

    with Server(slow) as server:
        start = time.monotonic()
        manager(server.url, num_workers=8, batch_size=1).score(requests(*map(str, range(16))))
        assert 0.6 <= time.monotonic() - start < 2.4  # two rounds of eight, not sixteen


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="variable SCORE_TOKEN is not set"):
        manager("http://localhost", token_variable="SCORE_TOKEN")
    monkeypatch.setenv("SCORE_TOKEN", "s3cret")
    with Server(as_numbers) as server:
        manager(server.url, token_variable="SCORE_TOKEN", headers={"X-Run": "7"}).score(requests("1"))
    assert (server.headers[0]["Authorization"], server.headers[0]["X-Run"]) == ("Bearer s3cret", "7")


def test_what_is_no_address_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match="must begin with http"):
        manager("localhost:8000")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_takes_no_token_along(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORE_TOKEN", "hush-hush")
    with Server(lambda body, number: (200, {"results": [1.0]})) as other:
        with Server(lambda body, number: (status, {}), {"Location": other.url}) as server:
            [result] = manager(server.url, token_variable="SCORE_TOKEN").score(requests("1"))
        assert result.score is None and result.error is not None and "is not followed" in result.error
        assert other.bodies == [] and len(server.bodies) == 1


def test_headers_may_refer_to_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORE_TOKEN", "hush-hush")
    with Server(lambda body, number: (200, {"results": [1.0]})) as server:
        manager(server.url, headers={"X-Key": "${env:SCORE_TOKEN}"}).score(requests("1"))
    assert server.headers[0]["X-Key"] == "hush-hush"
