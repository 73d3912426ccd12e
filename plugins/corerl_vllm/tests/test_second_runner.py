"""Steps of vLLM's second model runner, and its tokens, on a GPU."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import corerl_vllm_engine


@pytest.fixture(scope="module")
def printed(engine_python: str, device: str) -> dict[str, Any]:
    if device != "cuda":
        pytest.skip("vLLM's second model runner needs a GPU: CORERL_TEST_DEVICE=cuda")
    folder = Path(corerl_vllm_engine.__file__).parents[1]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [engine_python, str(Path(__file__).parent / "second_runner.py")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=500)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    assert len(lines) == 1, done.stdout[-1000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0])
    return found


def test_an_engine_answers_as_with_vllms_own_steps(printed: dict[str, Any]) -> None:
    """Equal tokens of all requests, greedy ones and those with filters among them, also after preemptions."""
    assert printed["used"] == [True, True]
    assert all(printed["same"]) and printed["difference"] < 1e-4
    assert printed["preempted"] > 0
    assert printed["made anew"] < 0.6 * printed["steps"]


def test_a_seed_draws_the_same_tokens_and_greedy_ones_are_vllms(printed: dict[str, Any]) -> None:
    assert all(printed["same greedy tokens"]) and printed["difference of greedy ones"] < 1e-4
    assert all(printed["same tokens again"])
    assert printed["left to vLLM's sampler"] > 0 and printed["left to vLLM's sampler, plain requests"] == 0
