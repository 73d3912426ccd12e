"""Weights as SGLang's loaders take them: two first projections of DeepSeek's in one call, names of files."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FIRST, SECOND, FUSED = "q_a_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"

PREFIXES = {"Qwen2_5_VLForConditionalGeneration": {"model.visual.": "visual.", "model.language_model.": "model."}}
"""SGLang's class -> prefixes of transformers' models, and those of files that its loader reads"""


class Pairs:
    """Keeps a copy of one of two tensors until the other one comes, which may be in a later bucket.

    Args:
        model: SGLang's; of a model that fuses nothing, all tensors pass.
    """

    def __init__(self, model: Any) -> None:
        self._prefixes = PREFIXES.get(type(model).__name__, {})
        self._fuses = any(FUSED in name for name, _ in model.named_parameters())
        self._kept: dict[str, Tensor] = {}

    def complete(self, tensors: "Iterable[tuple[str, Tensor]]") -> "list[tuple[str, Tensor]]":
        """The tensors without those that wait for another one; with those that waited for one of them."""
        given: list[tuple[str, Tensor]] = []
        for known, tensor in tensors:
            name = self._in_files(known)
            other = _other(name) if self._fuses else None
            if other is None:
                given.append((name, tensor))
            elif other in self._kept:
                given += [(other, self._kept.pop(other)), (name, tensor)]
            else:
                self._kept[name] = tensor.clone()
        return given

    def _in_files(self, name: str) -> str:
        for prefix, own in self._prefixes.items():
            if name.startswith(prefix):
                return own + name.removeprefix(prefix)
        return name


def _other(name: str) -> str | None:
    if f".{FIRST}." in name:
        return name.replace(FIRST, SECOND)
    return name.replace(SECOND, FIRST) if f".{SECOND}." in name else None
