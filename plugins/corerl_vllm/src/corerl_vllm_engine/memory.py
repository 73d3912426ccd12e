"""Bytes of an engine's KV cache on a GPU."""

from collections.abc import Iterable

import torch

GIB = 2**30

LIBRARIES = GIB // 2
"""bytes that libraries take outside of torch's memory: kernels, workspaces"""

GRAPHS = 3 * GIB // 2
"""bytes of all CUDA graphs of one engine"""


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
