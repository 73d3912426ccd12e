"""The names registered by corerl-fsdp."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.training_strategies import TrainingStrategyFactory


@hookimpl
def register_training_strategies(register: "Register[TrainingStrategyFactory]") -> None:
    register(
        "torch",
        "corerl_fsdp.single_device:SingleDeviceStrategy",
        options="corerl_fsdp.options:TorchOptions",
        replays=("experts", "images", "kept_tokens", "top_log_probs"),
        adapters=True,
        outputs_of_update=True,
        read_checkpoint="corerl_fsdp.reading:read_single",
        summary="one device, CPU or CUDA; AdamW",
    )
    register(
        "fsdp",
        "corerl_fsdp.fsdp:FsdpStrategy",
        options="corerl_fsdp.options:FsdpOptions",
        replays=("experts", "images", "kept_tokens", "top_log_probs"),
        adapters=True,
        outputs_of_update=True,
        distributed=True,
        read_checkpoint="corerl_fsdp.reading:read_sharded",
        summary="weights, gradients and optimizer sharded over 1 to N ranks (FSDP2); AdamW",
    )
