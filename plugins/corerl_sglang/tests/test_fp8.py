"""Weights that SGLang quantises at an update, on a CUDA device."""

from pathlib import Path

from transformers import Qwen3Config

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl_sglang.backend import SglangBackend
from corerl_sglang.options import SglangOptions
from requantized import an_update_gives_what_the_loader_gives
from sglang_engine import SHAPE, write


def test_an_update_gives_what_the_loader_gives(tmp_path: Path, engine_python: str) -> None:
    folder = write(tmp_path / "model", Qwen3Config(**SHAPE))
    options = SglangOptions(
        python=engine_python,
        start_timeout=300.0,
        quantization="fp8",
        gpu_memory_utilization=0.1,
        disable_cuda_graph=True,
        engine_args={"max_total_tokens": 100_000},
    )
    model, rollout = ModelConfig(str(folder), dtype="bf16"), RolloutConfig(name="sglang")
    backend = SglangBackend(model, rollout, device="cuda", options=options)
    try:
        backend.started()
        an_update_gives_what_the_loader_gives(backend, folder)
    finally:
        backend.close()
