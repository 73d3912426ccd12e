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
    lines: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"'):
            lines |= json.loads(line)
    assert set(lines) == {"engine", "ahead"}, done.stderr[-3000:]
    return lines


def test_an_engine_answers_as_with_vllms_own_steps(printed: dict[str, Any]) -> None:
    """Equal tokens of all requests, greedy ones and those with filters among them, also after preemptions."""
    found = printed["engine"]
    assert found["used"] == [True, True]
    assert all(found["same"]) and found["difference"] < 1e-4
    assert found["preempted"] > 0
    assert found["made anew"] < 0.6 * found["steps"]


def test_a_seed_draws_the_same_tokens_and_greedy_ones_are_vllms(printed: dict[str, Any]) -> None:
    found = printed["engine"]
    assert all(found["same greedy tokens"]) and found["difference of greedy ones"] < 1e-4
    assert all(found["same tokens again"])
    assert found["left to vLLM's sampler"] > 0 and found["left to vLLM's sampler, plain requests"] == 0


def test_an_engine_with_three_steps_under_way_answers_as_one_with_two(printed: dict[str, Any]) -> None:
    """Steps of other sizes, at the ends of responses, may round otherwise: a few greedy responses may part."""
    found = printed["ahead"]
    assert found["same"] > 0.9 * found["of"] > 0 and found["difference"] < 1e-2
