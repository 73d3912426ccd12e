"""Adapters for an engine that holds their base: the facts that its process needs, and the layout of their updates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.errors import ConfigError
from corerl_engines.options import EngineOptions
from corerl_engines.weights import ExpectedWeights, described_slot
from corerl_torch.weights import Slot, place

Facts = list[tuple[str, torch.Size, torch.dtype]]
"""name, shape and dtype of the tensors of an update, in order"""
Checked = Callable[[Iterable[tuple[str, Tensor]]], Iterable[tuple[str, Tensor]]]
"""as :meth:`corerl_engines.weights.ExpectedWeights.checked`"""


@dataclass
class Layout:
    """The layout of updates that fit in one bucket: hundreds of small tensors, which are described once.

    Attributes:
        slots: of the tensors, in order.
        described: for :func:`corerl_engines.remote.weights.read`.
        known: numbers of the adapters of which the engine has this layout.
    """

    facts: Facts
    slots: list[Slot]
    described: list[dict[str, Any]]
    known: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        last: "Layout | None",
        given: Sequence[tuple[str, Tensor]],
        checked: Checked,
        bucket_bytes: int,
        dtype: torch.dtype,
    ) -> "Layout | None":
        """``last`` if it is that of these tensors; None: they need several buckets.

        Raises:
            RunError: a tensor is missing, unknown or of another shape.
        """
        facts = [(name, tensor.shape, tensor.dtype) for name, tensor in given]
        if last is not None and facts == last.facts:
            return last
        slots = [slot for slot, _ in place(checked(given), bucket_bytes, dtype)]
        if not slots or any(slot.offset == 0 for slot in slots[1:]):
            return None
        return cls(facts, slots, [described_slot(slot) for slot in slots])

    def tensors(self, adapter: int, *, kept: bool) -> list[dict[str, Any]] | None:
        """For the engine's process; None: it has them.

        Args:
            kept: the engine keeps the layout of an adapter's last update.
        """
        if kept and adapter in self.known:
            return None
        self.known.add(adapter)
        return self.described


def takes(model: ModelConfig, rollout: RolloutConfig) -> bool:
    """Whether the engine gets adapters instead of all weights."""
    return model.lora_rank > 0 and rollout.lora == "adapter"


def described(model: ModelConfig, rollout: RolloutConfig, options: EngineOptions) -> dict[str, Any] | None:
    """Number, rank, alpha, scale and layers for the engine's process; None if it gets all weights.

    Raises:
        ConfigError: the engine would start with random weights, which adapters do not replace; or the model cannot have
            these adapters.
        ModelError: transformers cannot read the model's config.
    """
    if not takes(model, rollout):
        return None
    if "dummy" in (model.load_format, options.load_format):
        key = "model.load_format" if model.load_format == "dummy" else "rollout.options.load_format"
        raise ConfigError(key, "is dummy, and the base of adapters must be read: set auto, or rollout.lora=merged")
    layers = ExpectedWeights(model, adapters=True).layers()
    facts = {"rank": model.lora_rank, "alpha": model.lora_alpha, "rslora": model.lora_rslora, "layers": layers}
    return {"count": rollout.adapters, **facts}
