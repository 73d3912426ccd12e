"""Inputs of steps that keep those of the step before."""

import os
import subprocess
from pathlib import Path

import pytest

import corerl_vllm_engine


@pytest.mark.xdist_group("vllm")
def test_inputs_of_steady_steps_are_those_that_are_made_anew(engine_python: str) -> None:
    """Random runs of a runner's arrays on the CPU; vLLM's own runner needs a GPU (test_second_runner.py)."""
    command = [engine_python, str(Path(__file__).parent / "steady_schedules.py"), "0", "6"]
    path = {"PYTHONPATH": str(Path(corerl_vllm_engine.__file__).parents[1])}
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    steps, anew = (int(word) for word in done.stdout.split() if word.isdigit())
    assert steps > 600 and anew < 0.6 * steps
