"""Weights rounded to few bits, to study a sampler of lower precision than the trainer."""

from typing import Any, Literal

import torch
from torch import Tensor

Rounding = Literal["none", "int8", "int4", "int3", "int2"]

LEVELS: dict[str, int | None] = {"none": None, "int8": 127, "int4": 7, "int3": 3, "int2": 1}
"""largest integer of each type; the smallest is its negative"""


def matrices(model: Any) -> list[Tensor]:
    """The weights of all linear layers but the output layer, which quantised engines keep too."""
    output = model.get_output_embeddings()
    linear = (each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not output)
    return [each.weight for each in linear]


def rounded(matrix: Tensor, levels: int) -> Tensor:
    """The nearest multiples of a step of each output channel: its largest magnitude / ``levels``.

    Args:
        matrix: (outputs, inputs).
    """
    step = matrix.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny * levels) / levels
    return (matrix / step).round() * step
