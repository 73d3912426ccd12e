"""Weights of SGLang's FP8 linear layers, which updates replace in the dtype of the model.

SGLang quantises such a layer after loading: the weight becomes another parameter, transposed and in e4m3, with a scale
of each output channel and no way to load it again. Here the parameter gets a loader of its own. The first piece of an
update makes a parameter as SGLang's layer had it before, which SGLang's own loader of the layer fills piece by piece.
Once the layer is complete, SGLang's own code quantises it, and the result is copied to the addresses that CUDA graphs
read. So few layers exist in the dtype of the model at a time.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LINEAR, EXPERTS = "Fp8LinearMethod", "Fp8MoEMethod"
"""SGLang's classes of quantised layers"""

MakeParameter = Callable[..., Any]
"""SGLang's ``ModelWeightParameter``"""


class Requantized:
    """The FP8 linear layers of a model; none if it is not quantised.

    Args:
        model: SGLang's, loaded.
        make: as :data:`MakeParameter`.

    Raises:
        RuntimeError: the model has quantised experts, or the device has no FP8 kernels.
    """

    def __init__(self, model: Any, make: MakeParameter) -> None:
        self._layers = []
        for name, layer in model.named_modules():
            method = type(getattr(layer, "quant_method", None)).__name__
            if method == EXPERTS:
                raise RuntimeError(f"SGLang cannot load FP8 weights of experts again, as those of {name}")
            if method == LINEAR:
                if layer.quant_method.use_marlin:
                    raise RuntimeError("rollout.options.quantization=fp8 needs a GPU of compute capability 8.9 or more")
                self._layers.append(_Layer(layer, make))

    def begin(self) -> None:
        """Forget an incomplete update."""
        for layer in self._layers:
            layer.begin()


class _Layer:
    """The weight of one layer of this rank."""

    def __init__(self, layer: Any, make: MakeParameter) -> None:
        self._layer, self._make, self._lock = layer, make, threading.Lock()
        self._weight, self._scale = layer.weight, layer.weight_scale
        self._loader = getattr(layer, "weight_loader_v2", layer.weight_loader)  # replicated layers have one alone
        self._weight.weight_loader = self.load
        self.begin()

    def begin(self) -> None:
        self._coming: Any = None
        self._loaded = 0

    def load(self, parameter: Any, piece: Tensor, *arguments: Any, **more: Any) -> None:
        """In place of the loader of SGLang's layer, which has the same arguments."""
        layer = self._layer
        with self._lock:  # SGLang loads some models in several threads
            if self._coming is None:
                sizes = layer.output_size_per_partition, layer.input_size_per_partition
                data = torch.empty(sizes, dtype=layer.orig_dtype, device=self._weight.device)
                self._coming = self._make(data=data, input_dim=1, output_dim=0, weight_loader=self._loader)
            with _Written(self._coming) as written:
                self._loader(self._coming, piece, *arguments, **more)
            self._loaded += written.elements
            if self._loaded >= self._coming.numel():
                self._quantize()

    def _quantize(self) -> None:
        layer = self._layer
        layer.weight = self._coming
        layer.quant_method.process_weights_after_loading(layer)
        self._weight.data.copy_(layer.weight.data)
        self._scale.data.copy_(layer.weight_scale.data)
        layer.weight, layer.weight_scale = self._weight, self._scale
        self.begin()


class _Written(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements of a tensor that copies fill."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place, self.elements = tensor.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default and args[0].untyped_storage().data_ptr() == self._place:
            self.elements += args[0].numel()
        return result
