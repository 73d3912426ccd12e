"""Weights that SGLang loads in one call into one parameter: the first projections of DeepSeek's attention."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FIRST, SECOND, FUSED = "q_a_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"


class Pairs:
    """Keeps a copy of one of two tensors until the other one comes, which may be in a later bucket.

    Args:
        model: SGLang's; of a model that fuses nothing, all tensors pass.
    """

    def __init__(self, model: Any) -> None:
        self._fuses = any(FUSED in name for name, _ in model.named_parameters())
        self._kept: dict[str, Tensor] = {}

    def complete(self, tensors: "Iterable[tuple[str, Tensor]]") -> "list[tuple[str, Tensor]]":
        """The tensors without those that wait for another one; with those that waited for one of them."""
        given: list[tuple[str, Tensor]] = []
        for name, tensor in tensors:
            other = _other(name) if self._fuses else None
            if other is None:
                given.append((name, tensor))
            elif other in self._kept:
                given += [(other, self._kept.pop(other)), (name, tensor)]
            else:
                self._kept[name] = tensor.clone()
        return given


def _other(name: str) -> str | None:
    if f".{FIRST}." in name:
        return name.replace(FIRST, SECOND)
    return name.replace(SECOND, FIRST) if f".{SECOND}." in name else None
