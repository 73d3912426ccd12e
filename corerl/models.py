"""Devices, dtypes and folders of models."""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from corerl.config.typed import build
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError, ModelError
from corerl.files import read_text, reading

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


def critic_model(config: TrainConfig) -> ModelConfig:
    """The critic's: the section ``model`` with the values of ``critic.path`` and ``critic.model``."""
    own = {**dataclasses.asdict(config.model), "path": config.critic.path or config.model.path, **config.critic.model}
    return build(ModelConfig, own, "critic.model")


def overridden(model: ModelConfig, *, weights: bool = False) -> ModelConfig:
    """The model with ``model.override_config`` in its folder: one of links, and of a ``config.json`` with the values.

    Args:
        weights: if ``model.path`` is a hub name, download weights too, beside the small files.

    Raises:
        ConfigError: ``model.path`` is a folder without the ``config.json`` that an override needs.
        ModelError: ``model.path`` is no folder, and the hub does not have it.
    """
    if not model.override_config:
        return model
    source = named = Path(model.path).expanduser().absolute()
    if not source.is_dir():
        source = _downloaded(model.path, weights=weights)
    if not (source / "config.json").is_file():
        raise ConfigError(
            "model.override_config",
            f"needs a folder with a config.json, or a hub name, as model.path, not {model.path}",
        )
    with reading(source / "config.json"):
        config = json.loads(read_text(source / "config.json"))
    changed = json.dumps(merged(config, model.override_config), indent=2)
    files = sorted(file for file in source.iterdir() if file.name != "config.json")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "corerl" / "models"
    folder = cache / hashlib.sha256(f"{files}{changed}".encode()).hexdigest()[:16] / named.name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for file in files:
            (made / file.name).symlink_to(file)
        (made / "config.json").write_text(changed)
        try:
            made.rename(folder)
        except OSError:  # another process has made it
            shutil.rmtree(made)
    return dataclasses.replace(model, path=str(folder), override_config={})


def _downloaded(name: str, *, weights: bool) -> Path:
    """The folder of a hub name's files, downloaded unless they are in the cache."""
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py"]
    try:
        folder = Path(snapshot_download(name, allow_patterns=[*patterns, *(["*.safetensors"] if weights else [])]))
        if weights and not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*patterns, "*.bin"]))
    except (OSError, ValueError) as error:  # those of huggingface_hub are such errors
        reason = str(error).splitlines()[0]
        raise ModelError(f"model.path: {name} is no folder here and cannot be had from the hub ({reason})") from error
    return folder


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with ``changes``: mappings are merged; rope_scaling and rope_theta go into rope_parameters, if any."""
    found = dict(config)
    for key, value in changes.items():
        if key in ("rope_scaling", "rope_theta") and isinstance(config.get("rope_parameters"), Mapping):
            value = value if key == "rope_scaling" else {key: value}
            value = {"rope_type" if name == "type" else name: each for name, each in (value or {}).items()}
            key = "rope_parameters"
        own = found.get(key)
        found[key] = merged(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return found
