"""vLLM's worker on a GPU, whose KV cache does not depend on other processes.

vLLM measures the drop of the device's free memory during its start, and fails if another process frees memory
meanwhile. Here the trainer's models and other replicas take and free memory at the same time, so only this process's
own memory counts.
"""

import os
from collections.abc import Iterable
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.v1.worker.gpu_worker import Worker

from corerl_vllm_engine import BITWISE, invariant
from corerl_vllm_engine.memory import GRAPHS, cache_bytes, held_bytes


class GpuWorker(Worker):  # type: ignore[misc]
    """The cache gets the engine's share of the device's memory without weights, activations, graphs and libraries."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        if BITWISE in os.environ:
            invariant.use_in(self)

    @torch.inference_mode()
    def determine_available_memory(self) -> int:
        """Bytes of the KV cache."""
        cache = self.cache_config
        if cache.kv_cache_memory_bytes is None:
            graphs = 0 if self.model_config.enforce_eager else GRAPHS
            if self.vllm_config.lora_config is not None:
                graphs *= 2  # of batches without adapters, too
            cache.kv_cache_memory_bytes = cache_bytes(
                int(self.requested_memory), held_bytes(_tensors(self.model_runner.get_model())), self._peak(), graphs
            )
        available: int = super().determine_available_memory()
        return available

    def _peak(self) -> int:
        """Bytes of activations of the largest batch, which also compiles the model."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.profile_run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def _tensors(model: Any) -> Iterable[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for layer in model.modules():  # adapters are no parameters
        for name in ("lora_a_stacked", "lora_b_stacked"):
            stacked = getattr(layer, name, ())
            yield from (stacked,) if isinstance(stacked, torch.Tensor) else stacked
