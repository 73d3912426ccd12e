"""Processes that end, stop or do not start; none outlives its manager."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corerl.errors import RunError
from corerl.registry.modules import load_object
from corerl_rewards.isolation import pool
from corerl_rewards.parallel import ParallelRewardManager
from plugins.corerl_rewards.tests import attacks
from plugins.corerl_rewards.tests.managers import gone, manager, requests


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
