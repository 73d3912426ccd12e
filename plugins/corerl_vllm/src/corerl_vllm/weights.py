"""Weights on their way to the engine: checked by name, cut into buckets, written into shared memory."""

import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corerl.config.schema import ModelConfig
from corerl.errors import ModelError, RunError

ALIGNMENT = 64


class ExpectedWeights:
    """The Hugging Face names and shapes of a model's weights; of tied ones a single name is enough."""

    def __init__(self, model: ModelConfig) -> None:
        """
        Raises:
            ModelError: transformers cannot read the model's config.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        auto: Any = AutoModelForCausalLM
        folder = Path(model.path).expanduser()
        options = {"trust_remote_code": model.trust_remote_code}
        try:
            config = AutoConfig.from_pretrained(
                str(folder) if folder.is_dir() else model.path, local_files_only=folder.is_dir(), **options
            )
            with torch.device("meta"):
                built = auto.from_config(config, **options)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"model.path: {model.path} cannot be read: {str(error).splitlines()[0]}") from error
        built.tie_weights()
        state: dict[str, Tensor] = built.state_dict(keep_vars=True)
        self._shapes = {name: tensor.shape for name, tensor in state.items()}
        self._identities = {name: id(tensor) for name, tensor in state.items()}
        self._model = built  # keeps the identities unique

    def checked(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass the tensors on.

        Raises:
            RunError: one is unknown or of another shape, or, at the end, one is missing.
        """
        received = set()
        for name, tensor in weights:
            shape = self._shapes.get(name)
            if shape is None:
                raise RunError(f"weight '{name}' is unknown to the rollout model: the same model.path must be trained")
            if tensor.shape != shape:
                given, expected = list(tensor.shape), list(shape)
                raise RunError(f"weight '{name}' has shape {given}, the rollout model's has {expected}")
            received.add(self._identities[name])
            yield name, tensor
        missing = [name for name, identity in self._identities.items() if identity not in received]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise RunError(f"weight '{missing[0]}'{more} is missing in the update: all weights must be sent")


def buckets(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, size: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Cut a stream so that a bucket fills ``size`` bytes at most; a larger tensor has one of its own."""
    bucket: list[tuple[str, Tensor]] = []
    filled = 0
    for name, tensor in weights:
        needed = bytes_needed(tensor, dtype)
        if bucket and filled + needed > size:
            yield bucket
            bucket, filled = [], 0
        bucket.append((name, tensor))
        filled += needed
    if bucket:
        yield bucket


def bytes_needed(tensor: Tensor, dtype: torch.dtype) -> int:
    """In a bucket, where each tensor begins at a multiple of ``ALIGNMENT``."""
    size = tensor.numel() * as_sent(tensor, dtype).itemsize
    return size + -size % ALIGNMENT


def as_sent(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Weights are sent as the engine computes with them; integer tensors stay as they are."""
    return dtype if tensor.is_floating_point() else tensor.dtype


class SharedBucket:
    """Memory without a name, that grows to the largest bucket; it is gone with the processes that use it."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._memory: Any = None

    @property
    def path(self) -> str:
        """Where another process of this user finds what was written last."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @torch.no_grad()
    def write(self, bucket: list[tuple[str, Tensor]], dtype: torch.dtype, *, verify: bool) -> list[dict[str, Any]]:
        """Copy the tensors in; what the engine must know of each."""
        self._reserve(sum(bytes_needed(tensor, dtype) for _, tensor in bucket))
        described, offset = [], 0
        for name, tensor in bucket:
            kind = as_sent(tensor, dtype)
            place = torch.frombuffer(self._memory, dtype=kind, count=tensor.numel(), offset=offset)
            place.view(tensor.shape).copy_(tensor)
            raw: Any = place.view(torch.uint8).numpy() if verify else b""
            described.append(
                {
                    "name": name,
                    "dtype": str(kind).removeprefix("torch."),
                    "shape": list(tensor.shape),
                    "offset": offset,
                    "verify": verify,
                    "checksum": zlib.crc32(raw) if verify else 0,
                }
            )
            offset += bytes_needed(tensor, dtype)
        return described

    def _reserve(self, size: int) -> None:
        if self._memory is None or len(self._memory) < size:
            self.close()
            self._descriptor = os.memfd_create("corerl-vllm")
            os.ftruncate(self._descriptor, size)
            self._memory = mmap.mmap(self._descriptor, size)

    def close(self) -> None:
        """Free the memory."""
        if self._descriptor is not None:
            self._memory = None  # not closed: a tensor may still look at it
            os.close(self._descriptor)
            self._descriptor = None
