"""The environment that holds SGLang, and backends that run there."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl_sglang.backend import SglangBackend
from corerl_sglang.options import SglangOptions
from corerl_testing.tiny_model import tiny_model
from sglang_engine import DEVICE


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The interpreter named by ``CORERL_SGLANG_PYTHON``."""
    python = os.environ.get("CORERL_SGLANG_PYTHON")
    if python is None:
        pytest.skip("no environment with SGLang: set CORERL_SGLANG_PYTHON")
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("SGLang needs a CUDA device")
    return python


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[..., SglangBackend]]:
    """Backends of the tiny model by their options; closed at the end."""
    made: list[SglangBackend] = []

    def start(model: dict[str, Any] | None = None, gpus: int = 1, **options: Any) -> SglangBackend:
        config = ModelConfig(**{"path": str(tiny_model()), "dtype": "fp32", **(model or {})})
        rollout = RolloutConfig(tensor_model_parallel_size=gpus)
        options = {"start_timeout": 300.0, "timeout": 120.0, **options}  # the defaults are those of large models
        made.append(SglangBackend(config, rollout, device="cuda", options=SglangOptions(**options)))
        made[-1].started()
        return made[-1]

    yield start
    for backend in made:
        backend.close()
