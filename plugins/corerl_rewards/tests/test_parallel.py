"""Results of scorers in processes."""

import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.errors import PluginError
from corerl.registry.modules import load_object
from corerl_rewards.isolation.pace import Rules
from corerl_rewards.options import Gsm8kOptions
from corerl_rewards.parallel import ParallelRewardManager
from corerl_rewards.scorers.gsm8k import gsm8k
from listening import listeners
from plugins.corerl_rewards.tests.managers import alive, manager, requests


def test_results_come_in_the_order_of_the_requests(quick: ParallelRewardManager) -> None:
    results = quick.score(requests(*map(str, range(3000))))
    assert [result.score for result in results] == list(map(float, range(3000)))


def test_scorers_processes_open_no_port(quick: ParallelRewardManager) -> None:
    quick.score(requests("1", "2"))
    nursery = quick._dispatcher._pool.pid
    assert alive(nursery) and list(Path(f"/proc/{nursery}/task/{nursery}").glob("children"))
    assert listeners(nursery) == []


def test_a_late_call_that_ends_after_all_gives_its_result_and_no_other() -> None:
    parallel = manager(num_workers=2, timeout=20.0)
    seconds = [0.7 if number % 101 == 3 else 0.002 + number * 1e-6 for number in range(500)]
    try:
        parallel.score(requests(*["0.0001"] * 100, source="slow"))
        results = parallel.score(requests(*map(str, seconds), source="slow"))
    finally:
        parallel.close()
    assert [result.score for result in results] == seconds


def test_without_patience_a_long_call_keeps_its_place() -> None:
    strict = manager(num_workers=2, timeout=5.0, patience=None)
    try:
        strict.score(requests("0", source="slow"))
        start = time.monotonic()
        results = strict.score(requests(*["0.5"] * 6, source="slow"))
        assert time.monotonic() - start > 1.4  # six of half a second, two at a time
    finally:
        strict.close()
    assert [result.score for result in results] == [0.5] * 6


def test_long_results_arrive(patient: ParallelRewardManager) -> None:
    results = patient.score(requests(*map(str, range(40)), source="long"))
    assert [result.score for result in results] == list(map(float, range(40)))


def test_a_batch_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "batch_seconds", lambda self, calls: 1.0)
    parallel = manager(num_workers=1, timeout=60.0)
    try:
        results = parallel.submit(requests("1", "sleep", "2")).result(30)
    finally:
        parallel.close()
    assert results[1].error == "a response was not scored within 1 s, the deadline of its batch of 3"
    assert results[1].error_kind == "timeout"


def test_functions_of_files_and_options_reach_the_workers(tmp_path: Path) -> None:
    file = tmp_path / "my_reward.py"
    file.write_text("def score(response, ground_truth, data_source, extra_info): return {'score': len(response)}\n")
    flexible = functools.partial(gsm8k, options=Gsm8kOptions(method="flexible"))
    scorers: dict[str, Any] = {"file": load_object(f"{file}:score"), "flexible": flexible}
    parallel = ParallelRewardManager(scorers, num_workers=1, timeout=5)
    try:
        results = parallel.score([RewardRequest("four", "", "file"), RewardRequest("it is 42.", "42", "flexible")])
    finally:
        parallel.close()
    assert [result.score for result in results] == [4.0, 1.0]


def test_a_scorer_without_a_name_is_an_error_before_anything_starts() -> None:
    with pytest.raises(PluginError, match=r"the scorer of 's' cannot be loaded in a worker process .*manager=naive"):
        ParallelRewardManager({"s": lambda *_: 1.0}, num_workers=1, timeout=5)


def test_a_coroutine_function_is_a_scorer(quick: ParallelRewardManager) -> None:
    assert quick.score(requests("2", source="coroutine"))[0] == RewardResult(2.0)


def test_a_row_that_cannot_be_sent_is_an_error_of_its_sample(quick: ParallelRewardManager) -> None:
    bad = RewardRequest("1", threading.Lock(), "s")
    first, second = quick.score([bad, RewardRequest("2", "", "s")])
    assert (first.error_kind, second.score) == ("exception", 2.0)


def test_a_worker_is_replaced_after_so_many_calls() -> None:
    parallel = manager(num_workers=1, calls_per_worker=100)
    try:
        kept = [parallel.score(requests(*["x"] * 40, source="leaking"))[-1].components for _ in range(8)]
    finally:
        parallel.close()
    assert max(each["kept"] for each in kept) <= 140
    assert len({each["pid"] for each in kept}) >= 2


def test_several_threads_may_score_at_a_time(quick: ParallelRewardManager) -> None:
    results: dict[int, list[float | None]] = {}

    def score(number: int) -> None:
        responses = [str(1000 * number + n) for n in range(200)]
        results[number] = [result.score for result in quick.score(requests(*responses))]

    threads = [threading.Thread(target=score, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {number: [1000.0 * number + n for n in range(200)] for number in range(6)}
