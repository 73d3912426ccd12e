"""What corerl-fsdp registers."""

from corerl import hookimpl
from corerl.hookspecs import Register
from corerl.registry.training_strategies import TrainingStrategyFactory


@hookimpl
def register_training_strategies(register: Register[TrainingStrategyFactory]) -> None:
    register("torch", "corerl_fsdp.single_device:SingleDeviceStrategy", summary="one device, CPU or CUDA; AdamW")
