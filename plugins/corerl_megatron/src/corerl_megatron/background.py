"""Checkpoints of megatron-core that are copied to the host, and written while the training goes on.

megatron-core's own writing beside the training starts a process of its own, and ends with collectives of the group
that the training uses. Here torch writes what megatron-core has planned, in a thread, over a group beside.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.strategies import torch as library
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from corerl.errors import SaveError
from corerl_torch.host_memory import HostBlock

ALIGNED = 16
"""bytes: each copy begins at a multiple of it"""


class Copies:
    """The checkpoints of a rank, one at a time; their memory is kept for the next one, since new memory is slow.

    Args:
        group: all ranks, used only for writing.
        timeout: seconds to wait for the end of writing.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        self.group, self.timeout = group, timeout
        self._written: Any = None
        self._optimizer, self._other = HostBlock(), HostBlock()

    def save(self, tree: Callable[[HostBlock], dict[str, Any]], folder: Path) -> Callable[[], None]:
        """Copy a tree of megatron-core to the host, and start to write it; a collective.

        Args:
            tree: makes it; tensors in the given memory are not copied again.
            folder: all ranks see it.

        Returns:
            A function that waits until this rank's share is written; the checkpoint is complete when all ranks' shares
            are.

        Raises:
            SaveError: the last checkpoint, from the same memory, is still being written.
        """
        if self._written is not None and not wait([self._written], self.timeout).done:
            raise SaveError(f"the last checkpoint was not written within {self.timeout:g} s")
        writing = InBackground(self.group, self._copy)
        dist_checkpointing.save(tree(self._optimizer), str(folder), writing)
        written = self._written = writing.written

        def finish() -> None:
            written.result()

        return finish

    def _copy(self, tensors: Sequence[ShardedTensor]) -> None:
        """Replace the data of the tensors by copies, except data in the optimizer's memory."""
        own = self._optimizer.of(0).untyped_storage().data_ptr()
        others = [each for each in tensors if each.data.is_cuda or each.data.untyped_storage().data_ptr() != own]
        sizes = [-(-each.data.nbytes // ALIGNED) * ALIGNED for each in others]
        for each, part in zip(others, torch.split(self._other.of(sum(sizes)), sizes), strict=True):
            copy = part[: each.data.nbytes].view(each.data.dtype).view(each.data.shape)
            each.data = copy.copy_(each.data.detach(), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()


class InBackground(library.TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Returns from :meth:`save` once this rank's share is copied.

    Args:
        copy: replaces the data of tensors by copies.

    Attributes:
        written: a future of the files.
    """

    def __init__(self, group: Any, copy: Callable[[Sequence[ShardedTensor]], None]) -> None:
        super().__init__("torch_dist", 1)
        self.group, self.copy = group, copy
        self.written: Any = None

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        """As megatron-core's method, up to the copy."""
        by_key, _, _ = library._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )
        values = nested_values(by_key)
        self.copy([each for each in values if isinstance(each, ShardedTensor) and each.data is not None])
        self.written = state_dict_saver.async_save(
            library.mcore_to_pyt_state_dict(by_key, False),
            storage_writer=FileSystemWriter(checkpoint_dir),
            planner=library.MCoreSavePlanner(
                dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False
            ),
            process_group=self.group,
            async_stager=_Copied(),
        )


class _Copied(BlockingAsyncStager):
    """For a state that is a copy already."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return state_dict
