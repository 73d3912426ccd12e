"""Finds weights of SGLang's model that an update did not change.

SGLang's ``load_weights`` reports nothing: it skips unknown names, loads fused projections and experts piece by piece,
for some models in several threads, and has separate functions for each kind of layer. So every parameter is filled
before an update with a value that no model contains. A piece that was not loaded still holds this value afterwards.
"""

from typing import Any

import torch
from torch import Tensor

UNWRITTEN = {
    torch.bfloat16: (torch.int16, 0x7FE5),
    torch.float16: (torch.int16, 0x7F25),
    torch.float32: (torch.int32, 0x7FE5_A1B3),
    torch.float64: (torch.int64, 0x7FFE_5A1B_3C0D_E5A1),
}
"""the value as an integer of the same size: a NaN with unusual bits, which no arithmetic produces"""

CHUNK = 2**24
"""elements at a time, so that the search through a large parameter takes little additional memory"""


@torch.no_grad()
def forget(model: Any) -> None:
    """Fill all parameters of a ``torch.nn.Module`` with the value, in place."""
    for _, parameter in _loaded(model):
        integers, value = UNWRITTEN[parameter.dtype]
        parameter.view(integers).fill_(value)


@torch.no_grad()
def unwritten(model: Any) -> list[str]:
    """The model's names of the parameters that still hold an element of :func:`forget`, sorted."""
    return sorted(name for name, parameter in _loaded(model) if _holds_unwritten(parameter))


def _loaded(model: Any) -> list[tuple[str, Tensor]]:
    """The parameters that an update loads; a tied parameter is listed once.

    Integer parameters belong to quantised models; updates do not load them. ``_skip_weight_check`` is SGLang's mark of
    scales of the KV cache, which files may lack.
    """
    return [
        (name, parameter.data)
        for name, parameter in model.named_parameters()
        if parameter.dtype in UNWRITTEN and not getattr(parameter, "_skip_weight_check", False)
    ]


def _holds_unwritten(parameter: Tensor) -> bool:
    integers, value = UNWRITTEN[parameter.dtype]
    chunks: tuple[Tensor, ...] = parameter.view(integers).reshape(-1).split(CHUNK)  # type: ignore[no-untyped-call]
    return any(bool((chunk == value).any()) for chunk in chunks)
