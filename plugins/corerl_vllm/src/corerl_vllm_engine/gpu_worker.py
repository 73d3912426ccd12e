"""vLLM's worker on a GPU, whose KV cache does not depend on other processes.

vLLM measures the drop of the device's free memory during its start, and fails if another process frees memory
meanwhile. Here the trainer's models and other replicas take and free memory at the same time, so only this process's
own memory counts.
"""

from collections.abc import Iterable
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.v1.worker.gpu_worker import Worker

GIB = 2**30

LIBRARIES = GIB // 2
"""bytes that libraries take outside of torch's memory: kernels, workspaces"""

GRAPHS = 3 * GIB // 2
"""bytes of all CUDA graphs of one engine"""


class GpuWorker(Worker):  # type: ignore[misc]
    """The cache gets the engine's share of the device's memory without weights, activations, graphs and libraries."""

    @torch.inference_mode()
    def determine_available_memory(self) -> int:
        """Bytes of the KV cache."""
        cache = self.cache_config
        if cache.kv_cache_memory_bytes is None:
            graphs = 0 if self.model_config.enforce_eager else GRAPHS
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


def cache_bytes(share: int, weights: int, activations: int, graphs: int) -> int:
    """Bytes of the KV cache within an engine's share.

    Raises:
        ValueError: none are left.
    """
    left = share - weights - activations - graphs - LIBRARIES
    if left <= 0:
        raise ValueError(
            f"the engine's share of the device's memory, {share / GIB:.2f} GiB, leaves no KV cache beside weights "
            f"({weights / GIB:.2f} GiB), activations ({activations / GIB:.2f}), CUDA graphs ({graphs / GIB:.2f}) and "
            f"libraries ({LIBRARIES / GIB:.2f}): raise rollout.options.gpu_memory_utilization"
        )
    return left


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the memory that tensors hold; memory that several share counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _tensors(model: Any) -> Iterable[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
