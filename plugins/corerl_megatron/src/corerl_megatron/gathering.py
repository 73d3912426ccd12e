"""The state of megatron-core's distributed optimizer in main memory, for a checkpoint.

megatron-core gathers it over the data parallel ranks by eight copies, most of them in main memory; a checkpoint of
Qwen3-8B on four GPUs stopped training for 150 s. Here the device gathers it in parts, each of which is copied once.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from corerl_torch.host_memory import HostBlock

MOMENTS = ("exp_avg", "exp_avg_sq")
KEYS = ("param", *MOMENTS)

PART = 2**24
"""elements of each data parallel rank that are gathered at a time"""


@contextmanager
def gathered_on_device(optimizers: Sequence[Any], memory: HostBlock) -> Iterator[None]:
    """Within, distributed optimizers of megatron-core gather by :func:`gathered`, into parts of ``memory``."""
    sharded = [each for each in optimizers if hasattr(each, "gbuf_ranges")]
    count = sum(buffer.numel_unpadded for each in sharded for buffer in each.buffers) * len(KEYS)
    left: list[Tensor] = []

    def room(size: int) -> Tensor:
        if not left:  # a checkpoint without optimizer takes none
            left.append(memory.of(count * torch.float32.itemsize).view(torch.float32))
        taken, left[0] = left[0][:size], left[0][size:]
        return taken

    for each in sharded:
        each.get_parameter_state_dp_zero = functools.partial(gathered, each, room)
    try:
        yield
    finally:
        for each in sharded:
            del each.get_parameter_state_dp_zero  # the class's own is back


def gathered(optimizer: Any, room: Callable[[int], Tensor], **_: bool) -> dict[Any, Any]:
    """As ``DistributedOptimizer.get_parameter_state_dp_zero(use_gloo_comm=False, return_on_all_ranks=True)``.

    Copies may be under way when it returns; a synchronisation of the device waits for them.

    Args:
        room: number of elements -> (elements,) float32 in main memory.
    """
    state: dict[Any, Any] = {"buckets_coalesced": True}
    for number, ranges in enumerate(optimizer.gbuf_ranges):
        buffer, state[number] = optimizer.buffers[number], {}
        for dtype, buckets in ranges.items():
            own = state[number][dtype] = {"numel_unpadded": buffer.numel_unpadded}
            for key in KEYS:
                whole = own[key] = room(buffer.numel_unpadded)
                start = 0
                for bucket, of_bucket in zip(buffer.buckets, buckets, strict=True):
                    size = bucket.grad_data.numel()
                    _gather_bucket(optimizer, key, of_bucket["param_map"], size, whole[start:][: bucket.numel_unpadded])
                    start += bucket.numel_unpadded
    return state


def _gather_bucket(optimizer: Any, key: str, places: Any, size: int, whole: Tensor) -> None:
    """Fill ``whole``, the elements of a bucket without its padding; ``size`` has the padding."""
    group = optimizer.data_parallel_group
    share = size // group.size()
    held = [
        (place["gbuf_local"], optimizer._get_main_param_and_optimizer_states(parameter)[key].detach().view(-1))
        for parameter, place in places.items()
    ]
    device = held[0][1].device if held else optimizer.buffers[0].buckets[0].grad_data.device
    for first in range(0, share, PART):
        last = min(first + PART, share)
        part = torch.zeros(last - first, dtype=torch.float32, device=device)
        for place, values in held:
            low, high = max(first, place.start), min(last, place.end)
            if low < high:
                part[low - first : high - first] = values[low - place.start : high - place.start]
        parts = part.new_empty(group.size(), len(part))
        dist.all_gather_into_tensor(parts.view(-1), part, group=group)
        for rank, gathered_part in enumerate(parts):
            into = whole[rank * share + first : rank * share + last]
            into.copy_(gathered_part[: len(into)], non_blocking=True)
