"""What engines must know of a model's experts."""

import dataclasses
from typing import Any

from corerl.contracts.config import ModelConfig, RolloutConfig


def has_experts(config: Any) -> bool:
    """Whether a model, by its config of transformers, is a mixture of experts."""
    return bool(getattr(config.get_text_config(), "num_experts_per_tok", None))


def recorded_experts(model: ModelConfig, rollout: RolloutConfig) -> dict[str, Any] | None:
    """The facts for :class:`corerl_engines.remote.experts.ExpertsOf`; None if ``rollout.record`` has no experts.

    Raises:
        ModelError: the model has no experts, or training could not replay them.
    """
    import torch

    from corerl_torch.loading import load_causal_lm
    from corerl_torch.routers import COLUMN, Routers

    if COLUMN not in rollout.record:
        return None
    nothing_runs = dataclasses.replace(model, attn_implementation="eager")
    routers = Routers(load_causal_lm(nothing_runs, device="meta", dtype=torch.float32))
    return {"layers": list(routers.layers), "experts": routers.experts, "top_k": routers.top_k}
