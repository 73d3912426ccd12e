import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corerl.errors import PluginError, RunError
from corerl.registry.coroutines import blocking
from corerl.registry.modules import load_object
from corerl.registry.reward_managers import RewardRequest, RewardResult
from corerl_rewards.options import Gsm8kOptions, ParallelOptions
from corerl_rewards.parallel import ParallelRewardManager
from corerl_rewards.scorers.gsm8k import gsm8k
from plugins.corerl_rewards.tests import attacks

SCORERS: dict[str, Any] = {
    "s": attacks.score,
    "slow": attacks.slow,
    "leaking": attacks.leaking,
    "coroutine": blocking(attacks.coroutine),
    "whereabouts": attacks.whereabouts,
}


def manager(num_workers: int = 2, timeout: float = 10.0, **options: Any) -> ParallelRewardManager:
    return ParallelRewardManager(SCORERS, num_workers=num_workers, timeout=timeout, options=ParallelOptions(**options))


def requests(*responses: str, source: str = "s") -> list[RewardRequest]:
    return [RewardRequest(response, "truth", source) for response in responses]


@pytest.fixture(scope="module")
def quick() -> Iterator[ParallelRewardManager]:
    shared = manager(timeout=1.5, memory_limit_gb=0.5, patience=0.3)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[ParallelRewardManager]:
    shared = manager(timeout=60.0, memory_limit_gb=0.5)
    yield shared
    shared.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_results_come_in_the_order_of_the_requests(quick: ParallelRewardManager) -> None:
    results = quick.score(requests(*map(str, range(3000))))
    assert [result.score for result in results] == list(map(float, range(3000)))


@pytest.mark.parametrize(
    ("attack", "kind", "words"),
    [
        ("loop", "timeout", "ran past reward.timeout (1.5 s)"),
        ("hold", "timeout", "ran past reward.timeout (1.5 s)"),
        ("sleep", "timeout", "ran past reward.timeout (1.5 s)"),
        ("allocate", "memory", "raised MemoryError"),
        ("grow", "memory", "raised MemoryError"),
        ("crash", "crash", "ended its process (SIGSEGV)"),
        ("abort", "crash", "ended its process (SIGABRT)"),
        ("kill", "crash", "ended its process (SIGKILL)"),
        ("os._exit", "crash", "ended its process (exit code 0)"),
        ("close", "crash", "ended its process"),
        ("talk", "crash", "wrote into the connection of its process"),
        ("sys.exit", "exception", "raised SystemExit: 3"),
        ("recurse", "exception", "raised RecursionError"),
        ("not a number", "exception", "raised ValueError"),
    ],
)
def test_an_attack_ends_at_most_its_own_call(
    quick: ParallelRewardManager, patient: ParallelRewardManager, attack: str, kind: str, words: str
) -> None:
    chosen = quick if kind == "timeout" else patient
    results = chosen.score(requests("1", "2", attack, "3", "4", "5"))
    assert [result.score for result in results] == [1.0, 2.0, None, 3.0, 4.0, 5.0]
    assert results[2].error_kind == kind
    assert words in str(results[2].error)


@pytest.mark.parametrize("nuisance", ["print", "fork", "interrupt"])
def test_a_nuisance_is_none(patient: ParallelRewardManager, nuisance: str) -> None:
    results = patient.score(requests("1", nuisance, "3", nuisance, "5"))
    assert [result.score for result in results] == [1.0, 1.0, 3.0, 1.0, 5.0]


def test_many_attacks_at_once_cost_one_deadline() -> None:
    hostile = manager(num_workers=2, timeout=2.0, patience=0.2)
    try:
        hostile.score(requests("1"))
        start = time.monotonic()
        results = hostile.score(requests(*["sleep", "1", "2", "3"] * 10))
        took = time.monotonic() - start
    finally:
        hostile.close()
    assert [result.score for result in results] == [None, 1.0, 2.0, 3.0] * 10
    assert {result.error_kind for result in results[::4]} == {"timeout"}
    assert took < 8.0  # two at a time, one after the other, would be 10 deadlines of 2 s


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


def test_what_a_call_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setenv("CORERL_TEST_PIDS", str(pids))
    parallel = manager()
    try:
        assert parallel.score(requests("children"))[0].error_kind == "crash"
        assert gone([int(pid) for pid in pids.read_text().split()])
    finally:
        parallel.close()


def test_close_ends_all_processes_even_of_a_call_that_runs() -> None:
    parallel = manager(num_workers=2, timeout=60.0)
    pids = {int(result.components["pid"]) for result in parallel.score(requests(*["x"] * 8, source="whereabouts"))}
    future = parallel.submit(requests("hold"))
    nursery = parallel._dispatcher._pool.pid
    start = time.monotonic()
    parallel.close()
    parallel.close()
    assert time.monotonic() - start < 5.0
    assert gone([*pids, nursery])
    with pytest.raises(RunError, match="closed"):
        future.result(5)
    with pytest.raises(RunError, match="closed"):
        parallel.score(requests("1"))


PROGRAM = """
import os, signal, sys, time
sys.path.insert(0, {folder!r})
import attacks
from corerl.registry.reward_managers import RewardRequest
from corerl_rewards.parallel import ParallelRewardManager
parallel = ParallelRewardManager(dict(s=attacks.score, w=attacks.whereabouts), num_workers=2, timeout=60)
results = parallel.score([RewardRequest("", "", "w")] * 4)
parallel.submit([RewardRequest("hold", "", "s")] * 2)
time.sleep(0.3)
print(parallel._dispatcher._pool.pid, *{{int(result.components["pid"]) for result in results}}, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "sys.exit()", "1 / 0"])
def test_nothing_outlives_the_run(end: str) -> None:
    program = PROGRAM.format(folder=str(Path(attacks.__file__).parent), end=end)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 2
    assert gone(pids)


def test_when_the_nursery_is_killed_its_workers_are_replaced() -> None:
    parallel = manager(num_workers=2, timeout=20.0)
    try:
        before = parallel.score(requests("x", source="whereabouts"))[0].components["pid"]
        waiting = parallel.submit(requests("sleep", *["1"] * 50))
        time.sleep(0.5)
        os.kill(parallel._dispatcher._pool.pid, signal.SIGKILL)
        results = waiting.result(30)
        assert [result.score for result in results] == [None, *[1.0] * 50]
        assert results[0].error_kind == "crash"
        assert parallel.score(requests("x", source="whereabouts"))[0].components["pid"] != before
    finally:
        parallel.close()


def test_scorers_that_cannot_be_loaded_there_are_an_error_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "scorer.py"
    file.write_text("import os\nassert os.environ.get('HERE') == 'x'\ndef score(*_): return 1.0\n")
    os.environ["HERE"] = "x"
    scorer = load_object(f"{file}:score")
    del os.environ["HERE"]
    parallel = ParallelRewardManager({"s": scorer}, num_workers=2, timeout=5)
    try:
        with pytest.raises(RunError, match="cannot be loaded in a worker process: AssertionError"):
            parallel.score(requests("1"))
    finally:
        parallel.close()


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
