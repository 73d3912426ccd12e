"""Gives each rank its share of a model's weights: read from the files, or drawn, one tensor at a time.

A rank reads the bytes of its own shares. Random weights are drawn by every rank, whole, in the same order; a rank keeps
its share and frees the rest. So beside its share no rank holds more than one tensor, and no rank holds the model.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ModelError
from corerl_torch import lora, ranks
from corerl_torch.loading import load_model
from corerl_torch.loading_parts import draw, draw_missing, load_hollow, read_sources
from corerl_torch.model_files import Part, Source

_ADAPTER = ".lora_"


class Weights:
    """The weights of a model without storage: :meth:`find`, then :meth:`fill` once the model is sharded.

    Args:
        spec: of the model.
        dtype: of weights that are not trained.

    Attributes:
        model: the hollow model, without adapters; buffers that no file has are real.
    """

    def __init__(self, spec: StrategySpec, dtype: torch.dtype) -> None:
        self.spec, self.dtype = spec, dtype
        self.model, created = load_hollow(spec.model, spec.head, dtype)
        self.dummy = spec.model.load_format == "dummy"
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self.names = [names.get(id(parameter)) for parameter in created]
        self.sources: Mapping[str, Source] | None = {}
        self.missing: dict[str, Tensor] = {}

    def find(self) -> None:
        """Find the weights in the files, before :meth:`fill`; a collective.

        Raises:
            ModelError: the files are damaged or lack weights; on all ranks.
        """
        if not self.dummy:
            ranks.on_every_rank(self._find, ModelError)

    def _find(self) -> None:
        """The sources of all weights, and random values of those that may be missing."""
        found = read_sources(self.model, self.spec.model, self.spec.head)
        self.sources = None if found is None else found[0]
        if found is not None:
            self.missing = draw_missing(self.model, found[1], self.spec.seed)

    @torch.no_grad()
    def fill(self, model: Any) -> None:
        """Fill the shares of the sharded model, a collective.

        Args:
            model: :attr:`model` with adapters, sharded, with storage on the spec's device.
        """
        shares = {name.replace(".base_layer", ""): each for name, each in model.named_parameters()}
        plain = {name: each for name, each in shares.items() if _ADAPTER not in name}
        if self.dummy:
            self._draw(model, plain)
        elif self.sources is None:
            self._send(model, plain)
        else:
            ranks.on_every_rank(lambda: self._read(model, plain), ModelError)
        if lora.enabled(self.spec):
            self._adapt(model, {name: each for name, each in shares.items() if _ADAPTER in name})

    def _read(self, model: Any, shares: Mapping[str, Tensor]) -> None:
        assert self.sources is not None
        for name, share in shares.items():
            if name in self.missing:
                _keep(share, self.missing.pop(name))
            else:
                local, part = own_part(share)
                self.sources[name].copy(part, local)
        for name, buffer in model.named_buffers():
            if name in self.sources:
                self.sources[name].copy(tuple(slice(0, size) for size in buffer.shape), buffer)

    def _draw(self, model: Any, shares: Mapping[str, Tensor]) -> None:
        def take(number: int, values: Tensor) -> None:
            if (name := self.names[number]) is not None:
                _keep(shares[name], values)

        def give(number: int) -> Tensor | None:
            name = self.names[number]
            if name is None:
                return None
            return _whole(shares[name], self.spec.device)

        drawn = draw(self.spec.model, self.spec.head, self.spec.seed, take, give)
        buffers = dict(drawn.named_buffers())
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])

    def _send(self, model: Any, shares: Mapping[str, Tensor]) -> None:
        """Rank 0 reads the whole model and sends each tensor: for files that only transformers can read."""
        source: dict[str, Any] = {}

        def read() -> None:
            spec = self.spec
            source["model"] = load_model(spec.model, spec.head, device="cpu", dtype=self.dtype, seed=spec.seed)

        ranks.on_first_rank(read, ModelError)
        weights = dict(source["model"].named_parameters()) if source else {}
        buffers = dict(source["model"].named_buffers()) if source else {}
        for name, share in shares.items():
            _keep(share, _sent(weights.get(name), share, self.dtype, self.spec.device))
            if name in weights:
                weights.pop(name).data = torch.empty(0)
        for name, buffer in model.named_buffers():
            buffer.copy_(_sent(buffers.get(name), buffer, buffer.dtype, self.spec.device))

    def _adapt(self, model: Any, shares: Mapping[str, Tensor]) -> None:
        """The adapters, drawn by every rank for a model whose other weights have no memory."""
        plain = load_model(self.spec.model, self.spec.head, device="meta", dtype=self.dtype)
        whole = lora.initial(plain, self.spec)
        for name, share in shares.items():
            values = whole.pop(name)
            if ".lora_magnitude_vector." in name:
                owner = model.get_submodule(name.partition(".lora_magnitude_vector.")[0])
                base = _whole(owner.get_base_layer().weight, self.spec.device)
                values = lora.magnitude(base.cpu())
            _keep(share, values)


def own_part(share: Tensor) -> tuple[Tensor, Part]:
    """This rank's values of a tensor, and their place in it."""
    if not isinstance(share, DTensor):
        return share, tuple(slice(0, size) for size in share.shape)
    local = share.to_local()
    _, starts = compute_local_shape_and_global_offset(share.shape, share.device_mesh, share.placements)
    return local, tuple(slice(start, start + size) for start, size in zip(starts, local.shape, strict=True))


def _whole(share: Tensor, device: str) -> Tensor:
    """The tensor that ranks have shares of, perhaps elsewhere, on the device of the ranks; a collective."""
    sharded: Any = share.detach().to(device)
    whole: Tensor = sharded.full_tensor() if isinstance(share, DTensor) else sharded.clone()
    return whole


def _keep(share: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of a tensor."""
    local, part = own_part(share)
    local.copy_(whole[part])


def _sent(tensor: Tensor | None, like: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """Rank 0's tensor, on all ranks."""
    whole = torch.empty(like.shape, dtype=dtype, device=device) if tensor is None else tensor.detach().to(device, dtype)
    dist.broadcast(whole, 0)
    return whole
