"""Devices and dtypes of models."""

import os

import torch

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

THREADS_BESIDE_A_GPU = 8


def resolve_device(device: str, key: str = "actor.device") -> str:
    """``cpu`` or ``cuda``, for the value at ``key``.

    Raises:
        ConfigError: ``device`` is cuda, and torch sees no CUDA device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(key, "cuda is asked for and torch sees no CUDA device (nvidia-smi, torch build)")
    return device


def cpu_threads(available: int, device: str) -> int:
    """The number of torch's CPU threads, at most ``available``, for a worker on ``device``.

    Beside a GPU a few: the tensors of a batch are small, and many threads wait for each other longer than they work.
    ``OMP_NUM_THREADS`` overrules.
    """
    few = device == "cuda" and "OMP_NUM_THREADS" not in os.environ
    return max(1, min(available, THREADS_BESIDE_A_GPU) if few else available)


def compute_dtype(model: ModelConfig, device: str) -> torch.dtype:
    """The dtype that ``model.dtype`` means on a device."""
    if model.dtype == "auto":
        return torch.bfloat16 if device == "cuda" else torch.float32
    return DTYPES[model.dtype]
