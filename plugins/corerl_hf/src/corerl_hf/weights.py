"""The weights of a loaded model: replaced in place, freed and allocated again."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig
from corerl_hf.quantization import ROUNDED, Quantization, matrices
from corerl_torch import lora
from corerl_torch.weights import as_in_files
from corerl_torch.weights import complete as complete


class Weights:
    """Every parameter and saved buffer of a model, under its name in transformers; tied weights have several names."""

    def __init__(self, model: Any, quantization: Quantization = "none") -> None:
        self._tensors: dict[str, Tensor] = model.state_dict(keep_vars=True)
        self._shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self._device, self._config = model.device, model.config
        self._quantized, self._rounded = matrices(model), ROUNDED[quantization]
        self.round()

    @torch.no_grad()
    def round(self) -> None:
        """Round the matrices of the layers, as the option ``quantization`` says."""
        if self._rounded is not None:
            for matrix in self._quantized:
                matrix.copy_(self._rounded(matrix))

    @torch.no_grad()
    def copy_from(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy all weights in; for tied weights a single name is enough.

        Raises:
            RunError: a tensor is missing, unknown or of another shape; the weights are then partly replaced.
        """
        own = dict(as_in_files(self._config, self._tensors.items()))
        for name, tensor in complete(weights, own):
            own[name].copy_(tensor)
        self.round()

    def drop(self) -> None:
        """Free the memory of all weights."""
        for tensor in self._tensors.values():
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=self._device)

    def allocate(self) -> None:
        """Undo :meth:`drop`; the values are undefined until :meth:`copy_from`."""
        for name, tensor in self._tensors.items():
            if tensor.shape != self._shapes[name]:
                tensor.data = torch.empty(self._shapes[name], dtype=tensor.dtype, device=self._device)


class AdapterWeights:
    """The adapters of a model whose own weights are read once, and stay; while the engine sleeps, on the host."""

    def __init__(self, model: Any, config: ModelConfig, quantization: Quantization = "none") -> None:
        self._model, self._device = model, model.device
        Weights(model, quantization)  # rounds the base
        lora.insert(model, config)
        self._tensors = lora.parameters(model)

    @torch.no_grad()
    def copy_from(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy all adapters in.

        Raises:
            RunError: a tensor is missing, unknown or of another shape; the adapters are then partly replaced.
        """
        for name, tensor in complete(weights, self._tensors):
            self._tensors[name].copy_(tensor)

    def drop(self) -> None:
        """Free the device's memory."""
        self._model.to("cpu")

    def allocate(self) -> None:
        """Undo :meth:`drop`."""
        self._model.to(self._device)
