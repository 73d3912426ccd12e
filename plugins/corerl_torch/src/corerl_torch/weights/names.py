"""Names of weights in model files, which engines and other programs use."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

APART = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe", "olmoe", "qwen2_moe", "qwen3_moe"})
"""values of ``model_type`` whose files have separate matrices of each expert, which transformers stacks in memory"""


def as_in_files(config: Any, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Rename weights, or tensors of their shapes, from the names of a transformers model to those of its files.

    Args:
        config: of the model.
        named: stacks of experts are split, as views: ``mlp.experts.gate_up_proj`` (experts, 2 · width, hidden size)
            into ``mlp.experts.N.gate_proj.weight`` and ``mlp.experts.N.up_proj.weight``, likewise ``down_proj``.
    """
    apart = config.model_type in APART
    for name, tensor in named:
        stem, _, last = name.rpartition(".")
        if not (apart and stem.endswith("mlp.experts")):
            yield name, tensor
            continue
        for expert, own in enumerate(tensor):
            names = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
            for each, part in zip(names, own.chunk(len(names)), strict=True):
                yield f"{stem}.{expert}.{each}.weight", part
