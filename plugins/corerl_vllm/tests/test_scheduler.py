"""What the engine half changes in vLLM's scheduler, with vLLM's own parts."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import corerl_vllm_engine

SCRIPT = Path(__file__).with_name("blocks_of_requests.py")


@pytest.mark.parametrize("late", [0, 1])
def test_a_token_amid_a_block_needs_no_asking(engine_python: str, late: int):
    path = str(Path(corerl_vllm_engine.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [engine_python, str(SCRIPT), str(late)], env=environment, capture_output=True, text=True, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 2, done.stderr
    always, at_ends = map(json.loads, lines)
    assert at_ends["given"] == always["given"]
    assert at_ends["found"] == always["found"] and min(always["found"]) > 0
    assert at_ends["asked"] < always["asked"] / 3
