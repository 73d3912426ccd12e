"""The size of a model, and the workers that share it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Size of a model and its workers, for FLOPs.

    Attributes:
        parameters: used by each token: of a mixture of experts, not all.
        device_name: of each worker's device; '' on a CPU.
        workers: with a device each.
        data_parallel_size: number of shares of a batch.
    """

    parameters: int
    layers: int
    hidden_size: int
    device_name: str = ""
    vocabulary: int = 0
    workers: int = 1
    data_parallel_size: int = 1
