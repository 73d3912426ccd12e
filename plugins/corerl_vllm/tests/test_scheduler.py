"""What the engine half changes in vLLM's scheduler, with vLLM's own parts."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import corerl_vllm_engine


@pytest.mark.parametrize("late", [0, 1])
def test_a_token_amid_a_block_needs_no_asking(engine_python: str, late: int):
    always, at_ends = _lines(engine_python, "blocks_of_requests.py", late)
    assert at_ends["given"] == always["given"]
    assert at_ends["found"] == always["found"] and min(always["found"]) > 0
    assert at_ends["asked"] < always["asked"] / 3


@pytest.mark.parametrize("late", [0, 1])
def test_appended_tokens_give_the_responses_and_the_cache_of_vllms_own_scheduler(engine_python: str, late: int):
    own, appending = _lines(engine_python, "appended_tokens.py", late)
    assert appending["responses"] == own["responses"] and len(own["responses"]) == 23
    assert {end for _, _, ends in own["responses"].values() for end in ends} == {"stop", "length"}
    assert appending["cached"] == own["cached"] and appending["free"] == own["free"]
    assert appending["taken"] < own["taken"] / 5


def _lines(engine_python: str, script: str, late: int) -> list[dict[str, Any]]:
    """The two lines of JSON that a script beside this file prints."""
    path = str(Path(corerl_vllm_engine.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [engine_python, str(Path(__file__).with_name(script)), str(late)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 2, done.stderr
    return lines
