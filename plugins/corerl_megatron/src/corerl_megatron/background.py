"""Checkpoints of megatron-core that are copied to the host, and written while the training goes on.

megatron-core's own writing beside the training starts a process of its own, and ends with collectives of the group
that the training uses. Here torch writes what megatron-core has planned, in a thread, over a group beside.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.strategies import torch as library
from torch.distributed.checkpoint import state_dict_saver

from corerl_torch.distributed_writer import DistributedWriter
from corerl_torch.host_memory import HostBlock
from corerl_torch.ranks import WritingGroups

ALIGNED = 16
"""bytes: each copy begins at a multiple of it"""


class Memory:
    """The copies of one checkpoint of a rank, whose memory is kept for the next one, since new memory is slow."""

    def __init__(self) -> None:
        self.optimizer, self.other = HostBlock(), HostBlock()

    def copy(self, tensors: Sequence[ShardedTensor]) -> None:
        """Replace the data of the tensors by copies, except data in the optimizer's memory."""
        own = self.optimizer.of(0).untyped_storage().data_ptr()
        others = [each for each in tensors if each.data.is_cuda or each.data.untyped_storage().data_ptr() != own]
        sizes = [-(-each.data.nbytes // ALIGNED) * ALIGNED for each in others]
        for each, part in zip(others, torch.split(self.other.of(sum(sizes)), sizes), strict=True):
            copy = part[: each.data.nbytes].view(each.data.dtype).view(each.data.shape)
            each.data = copy.copy_(each.data.detach(), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()


class Copies:
    """The checkpoints of a rank, one at a time.

    Args:
        groups: of all ranks, for writing.
    """

    def __init__(self, groups: WritingGroups) -> None:
        self.groups = groups
        self._memory: Memory | None = None
        """that of a copy which is written"""

    def save(self, tree: Callable[[HostBlock], dict[str, Any]], folder: Path) -> Callable[[], None]:
        """Copy a tree of megatron-core to the host; a collective.

        Args:
            tree: makes it; tensors in the given memory are not copied again.
            folder: all ranks see it.

        Returns:
            A function that writes this rank's share; the checkpoint is complete when all ranks' shares are written.
        """
        group = self.groups.take()
        memory, self._memory = self._memory or Memory(), None  # while the last copy is still written, new memory
        planned = Planned(memory.copy)
        dist_checkpointing.save(tree(memory.optimizer), str(folder), planned)

        def write() -> None:
            try:
                with self.groups.used(group):
                    planned.write(group)
            finally:
                self._memory = memory

        return write


class Planned(library.TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Returns from :meth:`save` once this rank's share is copied.

    Args:
        copy: replaces the data of tensors by copies.

    Attributes:
        write: writes this rank's share, with a group of all ranks.
    """

    write: Callable[[Any], None]

    def __init__(self, copy: Callable[[Sequence[ShardedTensor]], None]) -> None:
        super().__init__("torch_dist", 1)
        self.copy = copy

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        """As megatron-core's method, up to the copy."""
        by_key, _, _ = library._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )
        values = nested_values(by_key)
        self.copy([each for each in values if isinstance(each, ShardedTensor) and each.data is not None])
        state = library.mcore_to_pyt_state_dict(by_key, False)
        planner = library.MCoreSavePlanner(
            dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False
        )

        def write(group: Any) -> None:
            writer = DistributedWriter(checkpoint_dir)
            state_dict_saver.save(state, storage_writer=writer, planner=planner, process_group=group)

        self.write = write
