"""The size of a model, and the workers that share it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """What the FLOPs of a pass depend on, the vocabulary's size, and the workers that share the work.

    Attributes:
        parameters: that each token meets: of a mixture of experts, not all.
        device_name: of each worker's device; '' on a CPU.
        workers: with a device each.
        data_parallel_size: shares that a batch is cut into.
    """

    parameters: int
    layers: int
    hidden_size: int
    device_name: str = ""
    vocabulary: int = 0
    workers: int = 1
    data_parallel_size: int = 1
