"""The trained weights of each client, their gradients and optimizer state, put into the model for its requests."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from corerl_torch import lora
from corerl_torch.stepping import SteppedStrategy


@dataclass(frozen=True)
class Adapter:
    """The LoRA of a client, within the adapters of the server's model.

    Attributes:
        rank: at most that of the server; further rows of A and columns of B are 0, and stay 0.
        alpha: outputs of adapters are multiplied by alpha / rank.
        seed: of A; B begins as 0.
        train_attn, train_mlp, train_unembed: the layers whose adapters are trained; others stay 0.
    """

    rank: int
    alpha: float
    seed: int = 0
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(eq=False)
class TrainedState:
    """A client's part of a model, beside the model.

    Attributes:
        adapter: None: all weights are trained.
        weights, gradients, optimizer: of each trained parameter, in the model's order.
        dtype and device are the parameters' own; with all weights trained, they are kept on the CPU.
    """

    adapter: Adapter | None
    weights: list[Tensor]
    gradients: list[Tensor | None] = field(default_factory=list)
    optimizer: list[dict[str, Any]] = field(default_factory=list)

    def copy(self) -> "TrainedState":
        """The weights alone, which nothing changes any more."""
        return TrainedState(self.adapter, [each.clone() for each in self.weights])


class Slot:
    """The trained parameters of a strategy's model, which hold one client's state at a time."""

    def __init__(self, strategy: SteppedStrategy) -> None:
        self._strategy = strategy
        named = list(lora.trained(strategy.model))
        self.names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self.is_lora = any(".lora_A." in name for name in self.names)
        self._storage = None if self.is_lora else torch.device("cpu")
        self._kinds = [self._kind(name) for name in self.names]
        self.has_head = "unembed" in self._kinds
        self._held: TrainedState | None = None

    def hold(self, state: TrainedState) -> None:
        """Put a state into the model; that of another client is put aside first."""
        if self._held is state:
            return
        self.put_aside()
        with torch.no_grad():
            for parameter, weights in zip(self._parameters, state.weights, strict=True):
                local(parameter).copy_(weights)
        optimizer = self._strategy.optimizer
        optimizer.state.clear()
        for number, parameter in enumerate(self._parameters):
            parameter.grad = self._moved(state.gradients[number], parameter) if state.gradients else None
            if state.optimizer and state.optimizer[number]:
                optimizer.state[parameter] = {
                    name: self._moved(value, parameter) for name, value in state.optimizer[number].items()
                }
        if state.adapter is not None:
            self._scale(state.adapter.alpha / state.adapter.rank)
        self._held = state

    def put_aside(self) -> None:
        """Copy the held state out of the model; nobody's is held then."""
        state, self._held = self._held, None
        if state is None:
            return
        optimizer = self._strategy.optimizer
        for weights, parameter in zip(state.weights, self._parameters, strict=True):
            weights.copy_(local(parameter).detach())
        state.gradients = [self._stored(parameter.grad) for parameter in self._parameters]
        state.optimizer = [
            {name: self._stored(value) for name, value in optimizer.state.get(parameter, {}).items()}
            for parameter in self._parameters
        ]

    def drop(self, state: TrainedState) -> None:
        """Forget a state."""
        if self._held is state:
            self._held = None

    def present(self) -> TrainedState:
        """A copy of the weights in the model."""
        adapter = self._held.adapter if self._held else None
        return TrainedState(adapter, [self._kept(parameter) for parameter in self._parameters])

    def new_adapter(self, adapter: Adapter) -> TrainedState:
        """A: uniform within ±1/sqrt(in), as peft's; B: 0; both 0 in layers that are not trained."""
        generator = torch.Generator().manual_seed(adapter.seed)
        weights = []
        for name, parameter, trains in zip(self.names, self._parameters, self.trains(adapter), strict=True):
            whole = torch.zeros(parameter.shape)
            if ".lora_A." in name and trains:
                bound = whole.shape[1] ** -0.5
                whole[: adapter.rank].uniform_(-bound, bound, generator=generator)
            weights.append(share(whole, parameter).to(parameter.dtype))
        return TrainedState(adapter, weights)

    def whole(self, number: int, tensor: Tensor) -> Tensor:
        """The full tensor of this rank's part of a parameter, or of a moment; a collective."""
        parameter = self._parameters[number]
        if tensor.ndim == 0 or not isinstance(parameter, DTensor):
            return local(tensor)
        sharded = _sharded(local(tensor).to(parameter.device), parameter)
        full: Tensor = sharded.full_tensor()
        return full

    def share(self, number: int, whole: Tensor) -> Tensor:
        """This rank's part of a full tensor."""
        return share(whole, self._parameters[number]).to(self._storage or self._parameters[number].device)

    def shape(self, number: int) -> torch.Size:
        """Of a parameter, all ranks together."""
        return self._parameters[number].shape

    def trains(self, adapter: Adapter | None) -> list[bool]:
        """Of each trained parameter, whether this client trains it."""
        if adapter is None:
            return [True] * len(self.names)
        chosen = {"attn": adapter.train_attn, "mlp": adapter.train_mlp, "unembed": adapter.train_unembed}
        return [chosen[kind] for kind in self._kinds]

    def drop_gradients(self, adapter: Adapter | None) -> None:
        """Drop the gradients of parameters that this client does not train."""
        for parameter, trains in zip(self._parameters, self.trains(adapter), strict=True):
            if not trains:
                parameter.grad = None

    def trained(self) -> list[tuple[str, Tensor]]:
        """Name and parameter, in the model's order."""
        return list(zip(self.names, self._parameters, strict=True))

    def has_gradient(self) -> bool:
        return any(parameter.grad is not None for parameter in self._parameters)

    def cut(self, adapter: Adapter | None, number: int, tensor: Tensor) -> Tensor:
        """Of a tensor of the shape of a parameter, the part of the adapter's own rank."""
        if adapter is None or tensor.ndim != 2:
            return tensor
        return tensor[: adapter.rank] if ".lora_A." in self.names[number] else tensor[:, : adapter.rank]

    def _kind(self, name: str) -> str:
        head = self._strategy.model.get_output_embeddings()
        layer = self._strategy.model.get_submodule(name.partition(".lora_")[0]) if self.is_lora else None
        if layer is not None and layer is head:
            return "unembed"
        return "attn" if "attn" in name or "attention" in name else "mlp"

    def scale(self) -> float:
        """The factor of the held adapter's B A."""
        assert self._held is not None and self._held.adapter is not None
        return self._held.adapter.alpha / self._held.adapter.rank

    def _scale(self, factor: float) -> None:
        for layer in self._layers():
            layer.scaling[lora.ADAPTER] = factor

    def _layers(self) -> Iterator[Any]:
        for name in self.names:
            if ".lora_A." in name:
                yield self._strategy.model.get_submodule(name.partition(".lora_A.")[0])

    def _kept(self, parameter: Tensor) -> Tensor:
        return local(parameter).detach().to(self._storage or parameter.device, copy=True)

    def _stored(self, value: Any) -> Any:
        return value.to(self._storage) if self._storage is not None and isinstance(value, Tensor) else value

    def _moved(self, value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        moved = value.to(parameter.device)
        if isinstance(parameter, DTensor) and not isinstance(moved, DTensor) and moved.ndim:  # of a checkpoint
            return _sharded(moved, parameter)
        return moved


def local(parameter: Tensor) -> Tensor:
    """The part of a sharded tensor on this rank; other tensors as they are."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def share(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a full tensor, on the device of the parameter."""
    if not isinstance(parameter, DTensor):
        return whole.to(parameter.device)
    moved = whole.to(parameter.device)
    made = distribute_tensor(moved, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return made.to_local().clone()


def _sharded(own: Tensor, parameter: DTensor) -> DTensor:
    """This rank's part as a part of a whole of the parameter's shape."""
    shape, stride = parameter.shape, parameter.stride()
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(own, mesh, placements, run_check=False, shape=shape, stride=stride)
