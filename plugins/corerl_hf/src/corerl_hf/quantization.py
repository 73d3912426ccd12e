"""Weights rounded to few bits, to study a sampler of lower precision than the trainer.

``fp8`` has the weights of engines that quantise to e4m3 with a scale of each output channel; products are computed from
the dequantised weights, and activations are not rounded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from corerl_torch import fp8
from corerl_torch.routers import routers_of

Quantization = Literal["none", "fp8", "int8", "int4", "int3", "int2"]


def matrices(model: Any) -> list[Tensor]:
    """The weights of all linear layers but output layer and routers, which quantised engines keep too."""
    output, routers = model.get_output_embeddings(), tuple(f"{name}." for name in routers_of(model))
    linear = (each for each in model.named_modules() if isinstance(each[1], torch.nn.Linear) and each[1] is not output)
    return [each.weight for name, each in linear if not f"{name}.".startswith(routers)]


def rounded(matrix: Tensor, levels: int) -> Tensor:
    """The nearest multiples of a step of each output channel: its largest magnitude / ``levels``.

    Args:
        matrix: (outputs, inputs).
        levels: largest integer; the smallest is its negative.
    """
    step = matrix.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny * levels) / levels
    return (matrix / step).round() * step


ROUNDED: dict[str, Callable[[Tensor], Tensor] | None] = {
    "none": None,
    "fp8": fp8.rounded,
    "int8": partial(rounded, levels=127),
    "int4": partial(rounded, levels=7),
    "int3": partial(rounded, levels=3),
    "int2": partial(rounded, levels=1),
}
"""the rounding of a matrix of each type"""
