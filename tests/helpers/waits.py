"""Tensors on the CPU that are followed as if they were on a device: where would the host wait for it?"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = {
    "nonzero",
    "_local_scalar_dense",
    "masked_select",
    "is_nonzero",
    "equal",
    "_unique2",
    "bincount",
    "masked_scatter_backward",
}
"""operations whose result the host needs, or whose size is known once they are done"""


class OnDevice(TorchDispatchMode):
    """Follows tensors as if they were on a device: copies that were moved, the weights, and all that is made of them.

    Attributes:
        waits: names of operations on them for which the host would wait.
    """

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._there = {id(each): each for each in weights}  # kept: an id may not be given to another tensor
        self.waits: list[str] = []

    def moved(self, tensor: torch.Tensor, _: Any) -> torch.Tensor:
        copy = tensor.clone()
        self._there[id(copy)] = copy
        return copy

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        result = function(*arguments, **(named or {}))
        tensors = [each for each in tree_leaves((arguments, named)) if isinstance(each, torch.Tensor)]
        if any(id(each) in self._there for each in tensors):
            name = function._schema.name.removeprefix("aten::")
            masks = name.startswith("index") and any(each.dtype == torch.bool for each in tensors)
            if name in WAITING or masks:
                self.waits.append(name)
            self._there |= {id(each): each for each in tree_leaves(result) if isinstance(each, torch.Tensor)}
        return result
