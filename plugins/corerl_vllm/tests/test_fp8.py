"""Weights that vLLM quantises at an update, on a CUDA device."""

from pathlib import Path

import pytest
from transformers import Qwen3Config
from vllm_engine import DEVICE, PYTHON, WITHOUT

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl_vllm.backend import VllmBackend
from corerl_vllm.options import VllmOptions
from requantized import an_update_gives_what_the_loader_gives
from sglang_engine import SHAPE, write


@pytest.mark.skipif(PYTHON is None, reason=WITHOUT)
@pytest.mark.skipif(DEVICE == "cpu", reason="FP8 needs a CUDA device: set CORERL_TEST_DEVICE=cuda")
@pytest.mark.xdist_group("vllm")
def test_an_update_gives_what_the_loader_gives(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", Qwen3Config(**SHAPE))
    options = VllmOptions(python=PYTHON, quantization="fp8", enforce_eager=True, gpu_memory_utilization=0.1)
    rollout = RolloutConfig(name="vllm")
    backend = VllmBackend(ModelConfig(str(folder), dtype="bf16"), rollout, device=DEVICE, options=options)
    try:
        an_update_gives_what_the_loader_gives(backend, folder)
    finally:
        backend.close()
