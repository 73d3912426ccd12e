"""Transfer of weights to engines: names, buckets, digests."""

from corerl_torch.weights.buckets import ALIGNMENT, Bucket, Slot, pack, place, unpack, view
from corerl_torch.weights.completeness import complete
from corerl_torch.weights.names import as_in_files, saved_buffers

__all__ = [
    "ALIGNMENT",
    "Bucket",
    "Slot",
    "as_in_files",
    "complete",
    "pack",
    "place",
    "saved_buffers",
    "unpack",
    "view",
]
