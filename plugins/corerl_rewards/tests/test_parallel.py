import contextlib
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.errors import PluginError, RunError
from corerl.registry.coroutines import blocking
from corerl.registry.modules import load_object
from corerl_rewards.isolation import pool
from corerl_rewards.isolation.pace import Rules
from corerl_rewards.options import Gsm8kOptions, ParallelOptions
from corerl_rewards.parallel import ParallelRewardManager
from corerl_rewards.scorers.gsm8k import gsm8k
from corerl_rewards.scorers.math import math
from listening import listeners
from plugins.corerl_rewards.tests import attacks

SCORERS: dict[str, Any] = {
    "s": attacks.score,
    "slow": attacks.slow,
    "burn": attacks.burn,
    "long": attacks.long,
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


def test_scorers_processes_open_no_port(quick: ParallelRewardManager) -> None:
    quick.score(requests("1", "2"))
    nursery = quick._dispatcher._pool.pid
    assert alive(nursery) and list(Path(f"/proc/{nursery}/task/{nursery}").glob("children"))
    assert listeners(nursery) == []


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
        ("backtrack", "timeout", "waiting for a processor or the disk does not count"),
        ("stop", "crash", "was stopped"),
        ("forge", "crash", "wrote into the connection of its process"),
        ("forge without end", "crash", "wrote into the connection of its process"),
        ("sys.exit", "exception", "raised SystemExit: 3"),
        ("recurse", "exception", "raised RecursionError"),
        ("not a number", "exception", "raised ValueError"),
    ],
)
def test_an_attack_ends_at_most_its_own_call(
    quick: ParallelRewardManager, patient: ParallelRewardManager, attack: str, kind: str, words: str
) -> None:
    chosen = quick if kind == "timeout" or attack == "stop" else patient
    results = chosen.score(requests("1", "2", attack, "3", "4", "5"))
    assert [result.score for result in results] == [1.0, 2.0, None, 3.0, 4.0, 5.0]
    assert results[2].error_kind == kind
    assert words in str(results[2].error)


@pytest.mark.parametrize("nuisance", ["print", "fork", "interrupt", "print low", "child"])
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
    assert took < 15.0  # two at a time, one after the other, would be 10 deadlines of 2 s


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
from corerl.contracts.reward_managers import RewardRequest
from corerl_rewards.parallel import ParallelRewardManager
parallel = ParallelRewardManager(dict(s=attacks.score, w=attacks.whereabouts), num_workers=2, timeout=60)
results = parallel.score([RewardRequest("", "", "w")] * 4)
parallel.submit([RewardRequest("hold", "", "s")] * 2)
time.sleep(0.3)
print(parallel._dispatcher._pool.pid, *{{int(result.components["pid"]) for result in results}}, flush=True)
{end}
"""


KILL = "os.kill(os.getpid(), signal.SIGKILL)"
STOP_NURSERY = "os.kill(parallel._dispatcher._pool.pid, signal.SIGSTOP)"


@pytest.mark.parametrize("end", [KILL, f"{STOP_NURSERY}; {KILL}", "os._exit(0)", "sys.exit()", "1 / 0"])
def test_nothing_outlives_the_run(end: str) -> None:
    program = PROGRAM.format(folder=str(Path(attacks.__file__).parent), end=end)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 2
    assert gone(pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_calls_that_ran_when_the_nursery_ended_or_stopped_are_scored_by_another(
    how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ANSWER_SECONDS", 1.0)
    parallel = manager(num_workers=2, timeout=20.0)
    try:
        before = parallel.score(requests("x", source="whereabouts"))[0].components["pid"]
        long = parallel.submit(requests("3", "3", source="slow"))
        time.sleep(0.5)
        nursery = parallel._dispatcher._pool.pid
        os.kill(nursery, how)
        others = parallel.submit(requests(*["os._exit"] * 6, *["1"] * 20))  # more workers end than stand ready
        assert [result.score for result in long.result(60)] == [3.0, 3.0]
        assert [result.score for result in others.result(60)] == [*[None] * 6, *[1.0] * 20]
        assert parallel.score(requests("x", source="whereabouts"))[0].components["pid"] != before
        assert gone([nursery])
    finally:
        parallel.close()


@pytest.mark.parametrize("attack", ["kill parent", "stop parent"])
def test_a_call_that_ends_or_stops_the_nursery_again_and_again_spoils_no_other(
    attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ANSWER_SECONDS", 1.0)
    parallel = manager(num_workers=3, timeout=20.0)
    batch = [*map(str, range(100)), *["os._exit"] * 8]
    for position in (3, 40, 41, 90):
        batch[position] = attack
    try:
        results = parallel.submit(requests(*batch)).result(90)
    finally:
        parallel.close()
    own = [(each, result.score) for each, result in zip(batch, results, strict=True) if each.isdecimal()]
    assert [(each, score) for each, score in own if score != float(each)] == []
    assert {result.error_kind for each, result in zip(batch, results, strict=True) if each == attack} <= {"crash", None}


def test_limits_and_priority_that_a_call_gives_the_nursery_reach_no_worker() -> None:
    parallel = manager(num_workers=1, timeout=20.0)
    try:
        parallel.score(requests("limit parent"))
        for _ in range(4):  # with those that stood ready: what takes their place is forked under these limits
            parallel.score(requests("os._exit"))
        after = parallel.score(requests("x", source="whereabouts"))[0].components
    finally:
        parallel.close()
    assert after["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert after["file_size"] == resource.getrlimit(resource.RLIMIT_FSIZE)[0]


@pytest.mark.parametrize("attack", ["forge", "leave a forger", "leave a killer"])
def test_forged_results_and_what_a_call_leaves_behind_change_no_other_result(attack: str) -> None:
    parallel = manager(num_workers=2, timeout=20.0)
    forged = set(range(5, 2000, 100)) if attack == "forge" else {100, 1100}
    try:
        results = parallel.score(requests(*[attack if n in forged else str(n) for n in range(2000)]))
    finally:
        parallel.close()
    assert [results[n].score for n in range(2000) if n not in forged] == [
        float(n) for n in range(2000) if n not in forged
    ]
    if attack == "forge":
        assert {results[n].error_kind for n in forged} == {"crash"}


def test_long_results_arrive(patient: ParallelRewardManager) -> None:
    results = patient.score(requests(*map(str, range(40)), source="long"))
    assert [result.score for result in results] == list(map(float, range(40)))


def test_a_stopped_worker_is_replaced_and_its_call_scored_by_another(capsys: pytest.CaptureFixture[str]) -> None:
    parallel = manager(num_workers=1, timeout=4.0)
    try:
        pid = int(parallel.score(requests("x", source="whereabouts"))[0].components["pid"])
        os.kill(pid, signal.SIGSTOP)
        results = parallel.submit(requests(*["x"] * 20, source="whereabouts")).result(60)
    finally:
        parallel.close()
    assert [result.error for result in results] == [None] * 20
    assert gone([pid])
    told = rf"a process of the scorers \({pid}\) is stopped for \S+ s: another process scores its calls\n"
    assert re.fullmatch(told, capsys.readouterr().err)


def test_a_nursery_that_is_stopped_while_it_loads_the_scorers_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    parallel = manager(num_workers=1)
    try:
        nursery = parallel._dispatcher._pool.pid
        os.kill(nursery, signal.SIGSTOP)
        assert parallel.submit(requests("1")).result(60)[0].score == 1.0
    finally:
        parallel.close()
    told = rf"the process that scorers are started from \(process {nursery}\) is stopped for \S+ s: a new process"
    assert re.match(told, capsys.readouterr().err)


BUSY = pytest.mark.skipif(
    "CORERL_BUSY_MACHINE" not in os.environ,
    reason="takes the processors from all that runs beside it: set CORERL_BUSY_MACHINE=1",
)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """As many processes that take what they can get, in sessions of their own: the kernel may share by session."""
    program = "import time\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_call_that_waits_for_a_processor_is_not_past_its_deadline() -> None:
    parallel = manager(num_workers=2, timeout=0.8)
    try:
        parallel.score(requests("0.001", source="burn"))
        with busy(6 * (os.cpu_count() or 1)):
            start = time.monotonic()
            results = parallel.score(requests("0.4", "0.4", source="burn"))
            took = time.monotonic() - start
    finally:
        parallel.close()
    assert [result.score for result in results] == [0.4, 0.4], results
    assert took > 0.8  # by the clock on the wall it was past it


@BUSY
def test_no_ordinary_row_is_lost_beside_forty_busy_processes() -> None:
    lines = (Path(__file__).parent / "verdicts.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "answer" in row]
    batch = [
        RewardRequest(f"So it is \\boxed{{{row['answer']}}}.", row["gold"], "math") for row in [*rows, *rows][:500]
    ]
    parallel = ParallelRewardManager({"math": math}, num_workers=8, timeout=3.0)
    try:
        parallel.score(batch[:1])
        with busy(40):
            results = parallel.score(batch)
    finally:
        parallel.close()
    assert [result.error for result in results if result.score is None] == []


@BUSY
@pytest.mark.parametrize("attack", ["loop", "sleep", "backtrack", "hold"])
def test_a_call_that_hangs_ends_on_a_busy_machine_too(attack: str) -> None:
    parallel = manager(num_workers=2, timeout=0.5)
    try:
        parallel.score(requests("1"))
        with busy(40):
            results = parallel.submit(requests("1", attack, "2")).result(90)
    finally:
        parallel.close()
    assert [result.score for result in results] == [1.0, None, 2.0]
    assert results[1].error_kind == "timeout"
    assert "reward.timeout" in str(results[1].error)


def test_a_batch_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "batch_seconds", lambda self, calls: 1.0)
    parallel = manager(num_workers=1, timeout=60.0)
    try:
        results = parallel.submit(requests("1", "sleep", "2")).result(30)
    finally:
        parallel.close()
    assert results[1].error == "a response was not scored within 1 s, the deadline of its batch of 3"
    assert results[1].error_kind == "timeout"


def test_workers_that_cannot_start_are_an_error_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "scorer.py"
    file.write_text(
        f"import os\nif os.getpid() != {os.getpid()}:  # whose forks are those of other tests\n"
        "    os.register_at_fork(after_in_child=lambda: os._exit(5))\ndef score(*_): return 1.0\n"
    )
    parallel = ParallelRewardManager({"s": load_object(f"{file}:score")}, num_workers=2, timeout=5)
    try:
        with pytest.raises(RunError, match="workers in a row ended before their first call, with exit code 5"):
            parallel.submit(requests("1")).result(60)
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
