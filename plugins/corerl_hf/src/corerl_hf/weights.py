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
    def copy_from(self, weights: Iterable[tuple[str, Tensor]], adapter: int = 0) -> None:
        """Copy all weights in, whatever the adapter; for tied weights a single name is enough.

        Raises:
            RunError: a tensor is missing, unknown or of another shape; the weights are then partly replaced.
        """
        own = dict(as_in_files(self._config, self._tensors.items()))
        for name, tensor in complete(weights, own):
            own[name].copy_(tensor)
        self.round()

    def use(self, adapter: int) -> None:
        """Nothing: there is one set of weights."""

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
    """Numbered adapters of a model whose own weights are read once, and stay; while the engine sleeps, on the host."""

    def __init__(self, model: Any, config: ModelConfig, count: int, quantization: Quantization = "none") -> None:
        self._model, self._device = model, model.device
        Weights(model, quantization)  # rounds the base
        lora.insert(model, config)
        self._tensors, self._used = lora.parameters(model), 0
        first = [each.data for each in self._tensors.values()]
        self._values = [first, *([each.clone() for each in first] for _ in range(count - 1))]

    @torch.no_grad()
    def copy_from(self, weights: Iterable[tuple[str, Tensor]], adapter: int = 0) -> None:
        """Copy all tensors of an adapter in.

        Raises:
            RunError: a tensor is missing, unknown or of another shape; the adapter is then partly replaced.
        """
        own = dict(zip(self._tensors, self._values[adapter], strict=True))
        for name, tensor in complete(weights, own):
            own[name].copy_(tensor)

    def use(self, adapter: int) -> None:
        """Let the model compute with an adapter from now on."""
        if adapter == self._used:
            return
        for parameter, values in zip(self._tensors.values(), self._values[adapter], strict=True):
            parameter.data = values
        self._used = adapter

    def drop(self) -> None:
        """Free the device's memory."""
        self._move(torch.device("cpu"))

    def allocate(self) -> None:
        """Undo :meth:`drop`."""
        self._move(self._device)

    def _move(self, device: torch.device) -> None:
        self._model.to(device)
        for number, values in enumerate(self._values):
            if number != self._used:
                self._values[number] = [each.to(device) for each in values]
        self._values[self._used] = [each.data for each in self._tensors.values()]
