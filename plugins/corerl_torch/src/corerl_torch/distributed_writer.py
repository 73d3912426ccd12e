"""torch's writer of distributed checkpoints, with errors that name the disk."""

from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from corerl.files import disk_error


class DistributedWriter(FileSystemWriter):
    """torch's serialization hides a full disk behind an error of its own, and other ranks see that error alone."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """As torch's method.

        Raises:
            OSError: the disk is full, or the file cannot be written for another reason of the disk.
        """
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            raise disk_error(error) from None
