"""Adapters for an engine that holds their base: the facts that its process needs."""

from typing import Any

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.errors import ConfigError
from corerl_engines.options import EngineOptions
from corerl_engines.weights import ExpectedWeights


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
