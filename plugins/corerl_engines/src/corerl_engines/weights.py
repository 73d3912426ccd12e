"""Weights for an engine: checked by name, written into memory that the engine's process reads."""

import dataclasses
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig
from corerl_torch import lora
from corerl_torch.loading import load_causal_lm
from corerl_torch.weights import ALIGNMENT, Slot, as_in_files, place, view
from corerl_torch.weights import complete as complete

Facts = list[tuple[str, torch.Size, torch.dtype]]
"""name, shape and dtype of the tensors of an update, in order"""
Checked = Callable[[Iterable[tuple[str, Tensor]]], Iterable[tuple[str, Tensor]]]
"""as :meth:`ExpectedWeights.checked`"""


class ExpectedWeights:
    """Names and shapes of a model's weights in files; for tied weights a single name is enough."""

    def __init__(self, model: ModelConfig, *, adapters: bool = False) -> None:
        """
        Args:
            adapters: of the model's adapters alone.

        Raises:
            ModelError: transformers cannot read the model's config.
            ConfigError: the model cannot have these adapters.
        """
        nothing_runs = dataclasses.replace(model, attn_implementation="eager")
        built = load_causal_lm(nothing_runs, device="meta", dtype=torch.float32)
        built.tie_weights()
        if adapters:
            lora.insert(built, model)
            self._state = lora.parameters(built)
        else:
            self._state = dict(as_in_files(built.config, built.state_dict(keep_vars=True).items()))
        self.config = built.config
        """the model's config, as read by transformers"""

    def layers(self) -> list[str]:
        """The last parts of the names of layers with adapters, such as ``q_proj``; ``experts`` for stacked ones."""
        owners = {name.split(".lora_")[0].removesuffix(".base_layer") for name in self._state if ".lora_" in name}
        return sorted({owner.rpartition(".")[2] for owner in owners})

    def bucket_size(self, limit: int, dtype: torch.dtype) -> int:
        """Bytes of a bucket: at least the largest tensor, otherwise up to ``limit``."""
        sizes = [
            tensor.numel() * (dtype if tensor.is_floating_point() else tensor.dtype).itemsize + ALIGNMENT
            for tensor in self._state.values()
        ]
        return max(*sizes, min(limit, sum(sizes)))

    def checked(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass the tensors on, and check them.

        Raises:
            RunError: a tensor is unknown or of another shape, or, at the end, missing.
        """
        return complete(weights, self._state)


class SharedBucket(Protocol):
    """Memory of this process that the engine's process reads."""

    @property
    def source(self) -> dict[str, Any]:
        """The description by which :func:`corerl_engines.remote.weights.read` opens the memory."""
        ...

    def write(self, slot: Slot, tensor: Tensor) -> None:
        """Copy a tensor to its slot; the tensor can be overwritten afterwards, by this process's present stream."""
        ...

    def write_together(self, slots: Sequence[Slot], tensors: Sequence[Tensor]) -> None:
        """As :meth:`write`, of many small tensors in few calls of the device."""
        ...

    def arrive(self) -> None:
        """Wait until all copies have arrived; the engine's process may read them then."""
        ...

    def close(self) -> None:
        """Free the memory; the engine's process has finished reading."""
        ...


class HostBucket:
    """Memory without a name; it is freed with the processes that use it."""

    def __init__(self, size: int) -> None:
        self._descriptor = os.memfd_create("corerl-weights")
        os.ftruncate(self._descriptor, size)
        self._memory: Tensor | None = torch.frombuffer(mmap.mmap(self._descriptor, size), dtype=torch.uint8)

    @property
    def source(self) -> dict[str, Any]:
        return {"path": f"/proc/{os.getpid()}/fd/{self._descriptor}"}

    def write(self, slot: Slot, tensor: Tensor) -> None:
        assert self._memory is not None
        view(self._memory, slot).copy_(tensor.detach())

    def write_together(self, slots: Sequence[Slot], tensors: Sequence[Tensor]) -> None:
        for slot, tensor in zip(slots, tensors, strict=True):
            self.write(slot, tensor)

    def arrive(self) -> None:
        pass

    def close(self) -> None:
        if self._memory is not None:
            self._memory = None
            os.close(self._descriptor)


class DeviceBucket:
    """Memory of a CUDA device, shared by its CUDA IPC handle: an engine's workers on the same node open it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._memory: Tensor | None = torch.empty(size, dtype=torch.uint8, device=device)
        self._views: dict[Slot, Tensor] = {}
        """made once: a view takes as long as a small copy"""
        self._together: tuple[Sequence[Slot], list[Tensor]] = (), []
        """the last slots that were written together, and their views"""
        storage: Any = self._memory.untyped_storage()
        _, block, length, offset, counter, counter_offset, event, wait = storage._share_cuda_()
        handle = [block.hex(), length, offset, counter.hex(), counter_offset, event.hex(), wait]
        self._source = {"device": device_uuid(device), "handle": handle}
        self._counter = (counter, counter_offset)

    @property
    def source(self) -> dict[str, Any]:
        return self._source

    def write(self, slot: Slot, tensor: Tensor) -> None:
        assert self._memory is not None
        if (own := self._views.get(slot)) is None:
            own = self._views[slot] = view(self._memory, slot)
        own.copy_(tensor.detach())

    def write_together(self, slots: Sequence[Slot], tensors: Sequence[Tensor]) -> None:
        memory = self._memory
        assert memory is not None
        if self._together[0] is not slots:
            self._together = slots, [view(memory, slot) for slot in slots]
        with torch.no_grad():
            torch._foreach_copy_(self._together[1], list(tensors), non_blocking=True)

    def arrive(self) -> None:
        assert self._memory is not None
        torch.cuda.current_stream(self._memory.device).synchronize()  # the engine's process does not see this stream

    def close(self) -> None:
        """Free the memory; torch keeps it until its reader has released it, which a killed reader cannot do."""
        if self._memory is not None:
            storage: Any = torch.UntypedStorage
            storage._release_ipc_counter_cuda(*self._counter)
            self._memory, self._views, self._together = None, {}, ((), [])


def described_slot(slot: Slot) -> dict[str, Any]:
    """For :func:`corerl_engines.remote.weights.read`."""
    dtype = str(slot.dtype).removeprefix("torch.")
    return {"name": slot.name, "dtype": dtype, "shape": list(slot.shape), "offset": slot.offset}


def device_uuid(device: torch.device) -> str:
    """The name of a CUDA device, equal in every process and for every CUDA_VISIBLE_DEVICES."""
    return str(torch.cuda.get_device_properties(device).uuid)


@dataclass
class Layout:
    """The layout of updates that fit in one bucket: hundreds of small tensors, which are described once.

    Attributes:
        slots: of the tensors, in order.
        described: for :func:`corerl_engines.remote.weights.read`.
        known: numbers of the adapters of which the engine has this layout.
    """

    facts: Facts
    slots: list[Slot]
    described: list[dict[str, Any]]
    known: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        last: "Layout | None",
        given: Sequence[tuple[str, Tensor]],
        checked: Checked,
        bucket_bytes: int,
        dtype: torch.dtype,
    ) -> "Layout | None":
        """``last`` if it is that of these tensors; None: they need several buckets.

        Raises:
            RunError: a tensor is missing, unknown or of another shape.
        """
        facts = [(name, tensor.shape, tensor.dtype) for name, tensor in given]
        if last is not None and facts == last.facts:
            return last
        slots = [slot for slot, _ in place(checked(given), bucket_bytes, dtype)]
        if not slots or any(slot.offset == 0 for slot in slots[1:]):
            return None
        return cls(facts, slots, [described_slot(slot) for slot in slots])

    def tensors(self, adapter: int, *, kept: bool) -> list[dict[str, Any]] | None:
        """For the engine's process; None: it has them.

        Args:
            kept: the engine keeps the layout of an adapter's last update.
        """
        if kept and adapter in self.known:
            return None
        self.known.add(adapter)
        return self.described
