"""What the engine half changes in vLLM's scheduler, with vLLM's own parts."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import corerl_vllm_engine

pytestmark = [
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif("CORERL_EVERY_ENGINE" not in os.environ, reason="takes a minute: set CORERL_EVERY_ENGINE=1"),
]


@pytest.mark.parametrize("late", [0, 1])
def test_a_token_amid_a_block_needs_no_asking(printed: dict[str, list[dict[str, Any]]], late: int) -> None:
    always, at_ends = (line for line in printed["blocks_of_requests.py"] if line["late"] == late)
    assert at_ends["given"] == always["given"]
    assert at_ends["found"] == always["found"] and min(always["found"]) > 0
    assert at_ends["asked"] < always["asked"] / 3


@pytest.mark.parametrize("ample", [False, True])
@pytest.mark.parametrize("late", [0, 1])
def test_held_tokens_and_steady_steps_give_all_that_vllms_own_scheduler_gives(
    printed: dict[str, list[dict[str, Any]]], late: int, ample: bool
) -> None:
    """The responses, the cache, and all orders to the worker in each step but for blocks."""
    lines = [line for line in printed["appended_tokens.py"] if not line["routed"] and line["late"] == late]
    own, gathering = sorted(lines, key=lambda line: line["blocks"])[2 * ample : 2 * ample + 2]
    assert gathering["responses"] == own["responses"] and len(own["responses"]) == 23
    assert {end for _, _, ends, _ in own["responses"].values() for end in ends} == {"stop", "length"}
    assert gathering["cached"] == own["cached"] and gathering["free"] == own["free"]
    assert gathering["orders"] == own["orders"]
    assert gathering["taken"] < own["taken"] / 5
    assert own["steps"] == 0 and gathering["steady"] > (0.9 if ample else 0.6) * gathering["steps"]


def test_experts_of_held_back_tokens_are_reported_with_them(printed: dict[str, list[dict[str, Any]]]) -> None:
    """Of each token that was read, prompt included, in order; also after a preemption by an update."""
    own, gathering = (line for line in printed["appended_tokens.py"] if line["routed"])
    assert gathering["responses"] == own["responses"]
    for number, (tokens, _, _, experts) in enumerate(gathering["responses"].values()):
        assert len(tokens) > 0 and experts == list(range(len(experts))), number
    read = {name: len(each[3]) - len(each[0]) for name, each in gathering["responses"].items()}
    assert read == {name: int(name.split()[1]) + 4 for name in read}  # prompts of 5 tokens and more


def test_random_runs_are_those_of_vllms_own_scheduler(engine_python: str) -> None:
    command = [engine_python, str(Path(__file__).parent / "random_schedules.py"), "0", "60"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    said = [line for line in done.stdout.splitlines() if "seed" in line]
    assert len(said) == 1, (said, done.stderr)
    seeds, ample, _, steady, held = (int(word) for word in said[0].split() if word.isdigit())
    assert seeds == 60 and ample > 10 and steady > 50 * seeds and held > 30 * seeds


def test_blocks_of_a_request_hold_its_tokens_and_responses_are_the_sampled_tokens(engine_python: str) -> None:
    """By vLLM's own core, with preemptions, aborts and resets; in place of the worker is a cache that is checked."""
    command = [engine_python, str(Path(__file__).parent / "checked_blocks.py"), "0", "60"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    seeds, steps, steady, blocks, reports = (int(word) for word in done.stdout.split() if word.isdigit())
    assert seeds == 60 and steady > steps / 2
    assert blocks <= 64 // 4 and reports <= 64 // 4  # of 64 requests; all in one step, if they took no turns


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(corerl_vllm_engine.__file__).parents[1])}


@pytest.fixture(scope="module")
def printed(engine_python: str) -> dict[str, list[dict[str, Any]]]:
    """The lines of both kinds of scheduling, from one process a script: imports of vLLM take longer than all else."""
    folder = Path(__file__).parent
    lines = {}
    for name in ("blocks_of_requests.py", "appended_tokens.py"):
        command = [engine_python, str(folder / name)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
        lines[name] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert len(lines[name]) == {"blocks_of_requests.py": 4, "appended_tokens.py": 10}[name], done.stderr
    return lines
