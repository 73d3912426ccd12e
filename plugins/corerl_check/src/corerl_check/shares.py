"""Memory of one GPU, in bytes, for a strategy or a backend without an estimate of its own."""

from corerl.contracts.checks import ModelSize, TrainingShare
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl_check.machine import GIB

PROCESS = 0.6 * GIB
"""bytes of a process with CUDA: its context and the libraries"""


def whole(size: ModelSize, model: ModelConfig, *, updated: bool) -> TrainingShare:
    """One undivided model: trained weights in float32 with a copy in the compute dtype, other weights in that dtype.

    AdamW keeps two float32 moments (Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, section 3.1: 16 bytes a
    parameter with weights and gradients; the copy makes 18).
    """
    trained = size.trained if updated else 0
    stored = 4 * trained + size.bytes * (size.parameters - trained)
    copy = size.bytes * trained if size.bytes < 4 else 0
    return TrainingShare(
        weights=stored + copy,
        gradients=4 * trained,
        optimizer=8 * trained,
        at_rest=stored + 8 * trained,
        checkpointing=model.enable_gradient_checkpointing,
    )


def longest(config: TrainConfig) -> int:
    """Tokens of the longest row."""
    return config.data.max_prompt_length + config.data.max_response_length
