"""The policy's weights out of a checkpoint: :class:`corerl.registry.training_strategies.CheckpointReader`."""

from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from corerl.config.schema import ModelConfig
from corerl.errors import ModelError

FILE, PREFIX = "state.safetensors", "model."


def read(folder: Path, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """What ``megatron`` has saved on a CPU.

    Raises:
        ModelError: it was saved on CUDA, in megatron-core's own format.
    """
    if not (folder / FILE).is_file():
        raise ModelError(
            f"{folder} is a checkpoint in megatron-core's format, which only ranks with CUDA read: take its "
            "huggingface/, which trainer.save_huggingface=always writes"
        )
    return _of_file(folder / FILE)


def _of_file(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            if name.startswith(PREFIX):
                yield name.removeprefix(PREFIX), file.get_tensor(name)
