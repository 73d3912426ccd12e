"""The weights of a loaded model: replaced in place, dropped and given room again."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from corerl.errors import RunError


class Weights:
    """Every parameter and saved buffer of a model, under its Hugging Face name; tied ones have several names."""

    def __init__(self, model: Any) -> None:
        self._tensors: dict[str, Tensor] = model.state_dict(keep_vars=True)
        self._shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self._device = model.device

    @torch.no_grad()
    def copy_from(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy all weights in; of tied ones a single name is enough.

        Raises:
            RunError: a tensor is missing, unknown or of another shape; the weights are then partly replaced.
        """
        received = set()
        for name, tensor in weights:
            target = self._tensors.get(name)
            if target is None:
                raise RunError(f"weight '{name}' is unknown to the rollout model: the same model.path must be trained")
            if tensor.shape != target.shape:
                expected, given = list(target.shape), list(tensor.shape)
                raise RunError(f"weight '{name}' has shape {given}, the rollout model's has {expected}")
            target.copy_(tensor)
            received.add(id(target))
        missing = [name for name, target in self._tensors.items() if id(target) not in received]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise RunError(f"weight '{missing[0]}'{more} is missing in the update: all weights must be sent")

    def drop(self) -> None:
        """Free the memory of all weights."""
        for tensor in self._tensors.values():
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=self._device)

    def allocate(self) -> None:
        """Undo :meth:`drop`; the values are undefined until :meth:`copy_from`."""
        for name, tensor in self._tensors.items():
            if tensor.shape != self._shapes[name]:
                tensor.data = torch.empty(self._shapes[name], dtype=tensor.dtype, device=self._device)
