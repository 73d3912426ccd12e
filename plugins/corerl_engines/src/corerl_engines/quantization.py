"""Models, devices and options beside which engines cannot quantise weights."""

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError
from corerl_engines.options import EngineOptions

KEY = "rollout.options.quantization"


def check_quantization(options: EngineOptions, model: ModelConfig, device: str, *, adapters: bool = False) -> None:
    """
    Args:
        adapters: updates consist of adapters alone.

    Raises:
        ConfigError: the engine cannot quantise weights so.
    """
    if options.quantization == "none":
        return
    for wrong, what in (
        (device != "cuda", "needs a CUDA device: set actor.device=cuda, or rollout.name=hf, which rounds weights"),
        (model.dtype == "fp32", "needs products in 16 bits: set model.dtype to bf16 or fp16, not fp32"),
        (adapters, "quantises the weights of updates, and these are adapters alone: set rollout.lora=merged"),
    ):
        if wrong:
            raise ConfigError(KEY, f"{options.quantization} {what}")
