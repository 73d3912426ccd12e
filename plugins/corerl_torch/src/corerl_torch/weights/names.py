"""Names of weights in model files, which engines and other programs use."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

OF_AN_EXPERT = "mlp.experts.*.gate_proj.weight"
"""transformers' pattern for files with separate matrices of each expert, which it stacks in memory"""


@functools.cache
def experts_apart(model_type: str) -> bool:
    """Whether the files of a family have separate matrices of each expert, by transformers' own table."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    find: Any = get_checkpoint_conversion_mapping
    conversions = find(model_type) or ()
    return any(OF_AN_EXPERT in getattr(each, "source_patterns", ()) for each in conversions)


def saved_buffers(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Buffers that belong to the model's files, such as the bias of a router's scores; no optimizer changes them."""
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


def as_in_files(config: Any, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Rename weights, or tensors of their shapes, from the names of a transformers model to those of its files.

    Args:
        config: of the model.
        named: stacks of experts are split, as views: ``mlp.experts.gate_up_proj`` (experts, 2 · width, hidden size)
            into ``mlp.experts.N.gate_proj.weight`` and ``mlp.experts.N.up_proj.weight``, likewise ``down_proj``.
    """
    apart = experts_apart(config.model_type)
    for name, tensor in named:
        stem, _, last = name.rpartition(".")
        if not (apart and stem.endswith("mlp.experts")):
            yield name, tensor
            continue
        for expert, own in enumerate(tensor):
            names = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
            for each, part in zip(names, own.chunk(len(names)), strict=True):
                yield f"{stem}.{expert}.{each}.weight", part
