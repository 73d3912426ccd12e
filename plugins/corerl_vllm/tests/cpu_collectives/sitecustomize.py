"""Gives vLLM's CPU build the two collectives of data parallel experts that it lacks: for tests alone.

Python imports this module at its start if its folder is in ``PYTHONPATH``.
"""

import importlib.abc
import importlib.util
import sys
from typing import Any

COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator"


def all_gatherv(self: Any, tensors: Any, dim: int = 0, sizes: Any = None) -> Any:
    import torch

    if isinstance(tensors, list):
        return [all_gatherv(self, each, dim, sizes) for each in tensors]
    parts = [tensors.new_empty(size, *tensors.shape[1:]) for size in sizes or [len(tensors)] * self.world_size]
    parts[self.rank_in_group].copy_(tensors)
    for rank, part in enumerate(parts):
        torch.distributed.broadcast(part, group_src=rank, group=self.device_group)
    return torch.cat(parts)


def reduce_scatterv(self: Any, tensor: Any, dim: int = 0, sizes: Any = None) -> Any:
    import torch

    whole = tensor.clone()
    torch.distributed.all_reduce(whole, group=self.device_group)
    return whole.split(sizes or len(whole) // self.world_size)[self.rank_in_group].contiguous()


class Adding(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != COMMUNICATOR:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.CpuCommunicator.all_gatherv = all_gatherv
            module.CpuCommunicator.reduce_scatterv = reduce_scatterv

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Adding())
