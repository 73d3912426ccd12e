"""The part of a tensor that is on this rank."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that ranks divide; other tensors as they are."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
