"""Deadlines of calls that wait for a processor."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corerl.contracts.reward_managers import RewardRequest
from corerl_rewards.parallel import ParallelRewardManager
from corerl_rewards.scorers.math import math
from plugins.corerl_rewards.tests.managers import manager, requests

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
    parallel = manager(num_workers=2, timeout=0.4)
    try:
        parallel.score(requests("0.001", source="burn"))
        with busy(6 * (os.cpu_count() or 1)):
            start = time.monotonic()
            results = parallel.score(requests("0.2", "0.2", source="burn"))
            took = time.monotonic() - start
    finally:
        parallel.close()
    assert [result.score for result in results] == [0.2, 0.2], results
    assert took > 0.4  # by the clock on the wall it was past it


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
