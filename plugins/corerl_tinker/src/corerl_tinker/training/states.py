"""The trained weights of each client, their gradients and optimizer state, put into the model for its requests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from corerl_torch.optimizers.shares import local
from corerl_torch.stepping import TrainedWeights, as_part


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

    def __init__(self, weights: TrainedWeights) -> None:
        self.weights = weights
        self._parameters = list(weights.own.values())
        self.is_lora = any(".lora_A." in name for name in weights.shapes)
        self._storage = None if self.is_lora else torch.device("cpu")
        self._kinds = {name: self._kind(name) for name in weights.shapes} if self.is_lora else {}
        self.has_head = "unembed" in self._kinds.values()
        self._held: TrainedState | None = None

    def hold(self, state: TrainedState) -> None:
        """Put a state into the model; that of another client is put aside first."""
        if self._held is state:
            return
        self.put_aside()
        with torch.no_grad():
            for parameter, weights in zip(self._parameters, state.weights, strict=True):
                local(parameter).copy_(weights)
        optimizer = self.weights.optimizer
        optimizer.state.clear()
        for number, parameter in enumerate(self._parameters):
            parameter.grad = self._moved(state.gradients[number], parameter) if state.gradients else None
            if state.optimizer and state.optimizer[number]:
                optimizer.state[parameter] = {
                    name: self._moved(value, parameter) for name, value in state.optimizer[number].items()
                }
        if state.adapter is not None:
            self.weights.set_scale(state.adapter.alpha / state.adapter.rank)
        self._held = state

    def put_aside(self) -> None:
        """Copy the held state out of the model; nobody's is held then."""
        state, self._held = self._held, None
        if state is None:
            return
        optimizer = self.weights.optimizer
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

    def empty(self, adapter: Adapter | None) -> TrainedState:
        """A state of zeros."""
        return TrainedState(adapter, self.zeros())

    def zeros(self) -> list[Tensor]:
        """A tensor for each parameter."""
        return [
            torch.zeros_like(local(each), device=self._storage or each.device, requires_grad=False)
            for each in self._parameters
        ]

    def new_adapter(self, adapter: Adapter) -> TrainedState:
        """A: uniform within ±1/sqrt(in), as peft's; B: 0; both 0 in layers that are not trained."""
        generator, state, whole = torch.Generator().manual_seed(adapter.seed), self.empty(adapter), {}
        for name, shape in self.weights.shapes.items():
            whole[name] = torch.zeros(shape)
            if ".lora_A." in name and self.trains(adapter, name):
                bound = shape[1] ** -0.5
                whole[name][: adapter.rank].uniform_(-bound, bound, generator=generator)
        self.scatter(whole, state.weights)
        return state

    def gather(self, tensors: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """(name, full tensor) of this rank's tensors, one for each parameter; a collective."""
        return self.weights.gather(self._of(tensors))

    def scatter(self, whole: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> None:
        """Fill this rank's tensors, one for each parameter, from full ones; a collective."""
        self.weights.scatter(whole, self._of(tensors))

    def trains(self, adapter: Adapter | None, name: str) -> bool:
        """Whether this client trains a parameter."""
        if adapter is None:
            return True
        chosen = {"attn": adapter.train_attn, "mlp": adapter.train_mlp, "unembed": adapter.train_unembed}
        return chosen[self._kinds[name]]

    def drop_gradients(self, adapter: Adapter | None) -> None:
        """Drop the gradients of parameters that this client does not train."""
        for name, parameter in self.weights.own.items():
            if not self.trains(adapter, name):
                parameter.grad = None

    def has_gradient(self) -> bool:
        return any(parameter.grad is not None for parameter in self._parameters)

    def scale(self) -> float:
        """The factor of the held adapter's B A."""
        assert self._held is not None and self._held.adapter is not None
        return self._held.adapter.alpha / self._held.adapter.rank

    def _kind(self, name: str) -> str:
        if name.partition(".lora_")[0] == self.weights.head:
            return "unembed"
        return "attn" if "attn" in name or "attention" in name else "mlp"

    def _of(self, tensors: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        table = {id(each): tensor for each, tensor in zip(self._parameters, tensors, strict=True)}
        return lambda parameter: local(table[id(parameter)]).detach()

    def _kept(self, parameter: Tensor) -> Tensor:
        return local(parameter).detach().to(self._storage or parameter.device, copy=True)

    def _stored(self, value: Any) -> Any:
        return value.to(self._storage) if self._storage is not None and isinstance(value, Tensor) else value

    def _moved(self, value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        moved = value.to(parameter.device)
        is_part = moved.ndim and not isinstance(moved, DTensor)  # of a checkpoint
        return as_part(moved, parameter) if is_part else moved


def cut(adapter: Adapter | None, name: str, tensor: Tensor) -> Tensor:
    """Of a full tensor of a parameter, the part of the adapter's own rank."""
    if adapter is None or tensor.ndim != 2:
        return tensor
    return tensor[: adapter.rank] if ".lora_A." in name else tensor[:, : adapter.rank]
