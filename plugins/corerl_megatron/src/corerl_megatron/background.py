"""Checkpoints of megatron-core that are copied to the host, and written while the training goes on.

megatron-core's own writing beside the training starts a process of its own, and ends with collectives of the group
that the training uses. Here torch writes what megatron-core has planned, in a thread, over a group beside.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.strategies import torch as library
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager


def save(state: dict[str, Any], folder: Path, group: Any, copies: Iterable[Tensor] = ()) -> Callable[[], None]:
    """Copy a tree of megatron-core to the host, and start to write it; a collective.

    Args:
        folder: all ranks see it.
        group: all ranks, used only for writing.
        copies: tensors on the host that no other code changes; parts of them in the tree are not copied again.

    Returns:
        A function that waits until this rank's share is written; the checkpoint is complete when all ranks' shares are.
    """
    writing = InBackground(group, copies)
    dist_checkpointing.save(state, str(folder), writing)

    def finish() -> None:
        writing.written.result()

    return finish


class InBackground(library.TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Returns from :meth:`save` once this rank's share is copied.

    Attributes:
        written: a future of the files.
    """

    def __init__(self, group: Any, copies: Iterable[Tensor]) -> None:
        super().__init__("torch_dist", 1)
        self.group = group
        self.copied = {each.untyped_storage().data_ptr() for each in copies}
        self.written: Any = None

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        """As megatron-core's method, up to the copy."""
        by_key, _, _ = library._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, self.keep_only_main_replica
        )
        for each in nested_values(by_key):
            if not isinstance(each, ShardedTensor) or each.data is None:
                continue
            if each.data.is_cuda or each.data.untyped_storage().data_ptr() not in self.copied:
                each.data = each.data.detach().to("cpu", copy=True, non_blocking=True)  # pinned, if it comes from CUDA
        if torch.cuda.is_available():
            torch.cuda.synchronize()
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
