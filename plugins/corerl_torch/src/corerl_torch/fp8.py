"""Matrix products of linear layers in FP8 (Micikevicius et al. 2022, arXiv 2209.05433), in training.

With x (n, inputs), W (outputs, inputs), g = dL/dy, and q(a) the rows of a in e4m3, each with its own float32 scale::

    y      = q(x) q(W)^T         rows of x and W
    dL/dx  = q(g) q(W^T)^T       rows of g and W^T, the columns of W
    dL/dW  = g^T x               in the compute dtype

A row's scale is its largest magnitude / 448, found anew in every product. So the products over a layer's inputs and
outputs are in FP8, and the sum over tokens, which makes the gradient of the weights, is not. Weights, gradients and
optimizer keep their dtypes.

The layers of the body compute so, except routers and adapters. Embeddings, norms, output layer, attention and the fused
weights of experts keep the compute dtype. CUDA devices of capability 9.0 have the kernels (``torch._scaled_mm``); on
the CPU the products of the dequantised numbers, in float32, stand for them.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as plain_linear

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError
from corerl.models import compute_dtype
from corerl_torch.routers import routers_of

KEY = "actor.strategy.fp8"

E4M3 = torch.float8_e4m3fn

CAPABILITY = (9, 0)
"""smallest compute capability with kernels for a scale of each row"""

MULTIPLE = 16
"""divides the inputs and outputs of a layer that the kernels take"""

EXCLUDED = ("lora_", "visual", "vision")
"""parts of names of layers that keep the compute dtype: adapters, and towers that read images"""


def check(model: ModelConfig, device: str, key: str = KEY) -> None:
    """Raise ConfigError for a device or dtype without FP8 products.

    Args:
        device: ``cpu`` or ``cuda``, which is this process's.
    """
    if device != "cuda":
        return
    if compute_dtype(model, device) != torch.bfloat16:
        raise ConfigError(key, f"gives products in bf16, and model.dtype is {model.dtype}: set it to bf16")
    capability = torch.cuda.get_device_capability()
    if capability < CAPABILITY:
        has, needs = (".".join(map(str, each)) for each in (capability, CAPABILITY))
        raise ConfigError(key, f"needs a GPU of compute capability {needs} (H100), and this one has {has}: remove it")


def use(model: Any) -> None:
    """Let the linear layers of a transformers model compute in FP8, in place.

    Raises:
        ConfigError: the model has no such layer.
    """
    layers = list(eligible(model))
    if not layers:
        raise ConfigError(KEY, f"{type(model).__name__} has no linear layer whose sizes are multiples of {MULTIPLE}")
    for _, layer in layers:
        layer.forward = functools.partial(_forward, layer)


def eligible(model: Any) -> Iterator[tuple[str, Any]]:
    """Names and linear layers of the body that FP8 can compute: no routers, no adapters, sizes that divide."""
    routers, output = tuple(f"{name}." for name in routers_of(model)), model.get_output_embeddings()
    for name, module in model.named_modules():
        if type(module) is not torch.nn.Linear or module is output or name.startswith(routers):
            continue
        divides = not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)
        if divides and not any(part in name for part in EXCLUDED):
            yield name, module


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(..., outputs), in autocast's dtype, else in that of ``hidden``; differentiable.

    Args:
        hidden: (..., inputs).
        weight, bias: (outputs, inputs), (outputs,).
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    apply: Any = _Linear.apply
    product: Tensor = apply(hidden.reshape(-1, hidden.shape[-1]), weight, dtype)
    product = product.view(*hidden.shape[:-1], -1)
    return product if bias is None else product + bias.to(dtype)


def quantized(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) e4m3, contiguous, and the (rows, 1) float32 scales: their product is the matrix, rounded."""
    rows = matrix.float()
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 448.0  # a name would be an input of the graph
    return (rows / scale).clamp(-448.0, 448.0).to(E4M3).contiguous(), scale


def rounded(matrix: Tensor) -> Tensor:
    """The matrix with its rows in e4m3, dequantised, in its dtype."""
    values, scale = quantized(matrix)
    return (values.float() * scale).to(matrix.dtype)


def _forward(layer: torch.nn.Linear, hidden: Tensor) -> Tensor:
    return linear(hidden, layer.weight, layer.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(hidden.to(dtype) if ctx.needs_input_grad[1] else None, weight)
        ctx.dtype = hidden.dtype
        return _product(hidden, weight, dtype, exact=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gradient,) = gradients
        hidden, weight = ctx.saved_tensors
        of_hidden = of_weight = None
        if ctx.needs_input_grad[0]:
            of_hidden = _product(gradient, weight.t(), gradient.dtype, exact=True).to(ctx.dtype)
        if hidden is not None:
            of_weight = plain_linear(gradient.t(), hidden.t()).to(weight.dtype)
        return of_hidden, of_weight, None


def _product(left: Tensor, right: Tensor, dtype: torch.dtype, *, exact: bool) -> Tensor:
    """q(left) q(right)^T, (n, m), of (n, k) and (m, k).

    Args:
        exact: on CUDA, sum in float32 throughout; slower.
    """
    quantize = _compiled() if left.is_cuda and not torch.compiler.is_compiling() else quantized
    (left, of_left), (right, of_right) = quantize(left.detach()), quantize(right.detach())
    if not left.is_cuda:
        return ((left.float() * of_left) @ (right.float() * of_right).t()).to(dtype)
    return torch._scaled_mm(
        left, right.t(), scale_a=of_left, scale_b=of_right.t(), out_dtype=dtype, use_fast_accum=not exact
    )


@functools.cache
def _compiled() -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """:func:`quantized` in one kernel, for any size."""
    return torch.compile(quantized, dynamic=True)
