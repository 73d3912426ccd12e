"""Adapters (``model.lora_rank``) apart from their model: sent alone to engines; the reference is the model without."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from corerl.contracts.config import TrainConfig
    from corerl.contracts.facts import BackendFacts, StrategyFacts
    from corerl.contracts.training_strategies import MicroBatching


@runtime_checkable
class AdaptingStrategy(Protocol):
    """A strategy with the fact ``adapters``."""

    def adapters(self, dtype: "torch.dtype | None" = None) -> "Iterator[tuple[str, Tensor]]":
        """As :meth:`TrainingStrategy.weights`, the adapters alone, by their names in files of peft."""
        ...

    def base(self, limit: "MicroBatching") -> AbstractContextManager[None]:
        """Within, ``forward`` computes the model without its adapters, in micro-batches of this limit."""
        ...


def are_sent(config: "TrainConfig", strategy: "StrategyFacts", backend: "BackendFacts") -> bool:
    """Whether engines get adapters: as ``rollout.lora`` says, else if strategy and engine can."""
    model, chosen = config.model, config.rollout.lora
    if not model.lora_rank or chosen is not None:
        return bool(model.lora_rank) and chosen == "adapter"
    return strategy.adapters and backend.adapters and model.load_format != "dummy" and not model.lora_dora


def hold_reference(config: "TrainConfig", strategy: "StrategyFacts") -> bool:
    """Whether the reference is the policy's model without its adapters, so that there is no second copy."""
    is_base = config.ref.path in (None, config.model.path) and config.ref.strategy is None
    return config.model.lora_rank > 0 and is_base and strategy.adapters
