"""Training outside of a run: gradients and optimizer steps as separate calls, with AdamW's values of each step."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch import Size, Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from corerl.contracts.experience import Experience
from corerl.contracts.objective import Objective
from corerl.errors import NonFiniteError
from corerl_torch import lora
from corerl_torch.optimizer import clip_gradients, gradient_norm
from corerl_torch.sums import Numbers

Of = Callable[[Tensor], Tensor]
"""a tensor of the shape of this rank's part of a parameter: its moment, or a copy"""


class TrainedWeights(Protocol):
    """The trained parameters of a model, which ranks may divide; all ranks call ``gather``, ``scatter``, ``norm``.

    Attributes:
        optimizer: AdamW over ``own``.
        own: this rank's parameters by name; with adapters, the names of transformers and peft.
        shapes: name in a transformers model with adapters of peft -> shape of all ranks together.
        config: of the transformers model.
        head: name of the output layer's module.
        speaks: of the ranks with the same rows, this one has their losses.
    """

    optimizer: torch.optim.Optimizer
    own: Mapping[str, Tensor]
    shapes: Mapping[str, Size]
    config: Any
    head: str
    speaks: bool

    def gather(self, of: Of) -> Iterator[tuple[str, Tensor]]:
        """The full tensor of each name in ``shapes``."""
        ...

    def scatter(self, whole: Mapping[str, Tensor], of: Of) -> None:
        """Copy this rank's parts of full tensors, which all ranks have, into tensors."""
        ...

    def norm(self) -> Tensor:
        """Complete the gradients, and return the norm of all ranks' together."""
        ...

    def set_scale(self, factor: float) -> None:
        """The factor of B A of all adapters."""
        ...


@runtime_checkable
class SteppedStrategy(Protocol):
    """A training strategy whose gradients add up until a step of its own."""

    def accumulate(self, mini_batch: Experience, objective: Objective) -> Numbers:
        """Add the gradient of a mini-batch's loss, cut into micro-batches; returns the sums over them."""
        ...

    def trained_weights(self) -> TrainedWeights:
        """
        Raises:
            ConfigError: with these options or on this device, the strategy takes no single steps.
        """
        ...


class ModelWeights:
    """Those of a transformers model, whose parameters may be sharded by DTensor: see :class:`TrainedWeights`.

    Args:
        peers: ranks that have the same rows.
    """

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer, peers: int = 1) -> None:
        self.optimizer, self.config = optimizer, model.config
        self.own = dict(lora.trained(model))
        self.shapes = {name: parameter.shape for name, parameter in self.own.items()}
        head = model.get_output_embeddings()
        self.head = next((name for name, module in model.named_modules() if module is head), "")
        self.speaks = not dist.is_initialized() or dist.get_rank() % peers == 0
        names = [name.partition(".lora_A.")[0] for name in self.own if ".lora_A." in name]
        self._layers: list[Any] = [model.get_submodule(name) for name in names]

    def gather(self, of: Of) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.own.items():
            own = of(parameter)
            if isinstance(parameter, DTensor):
                yield name, cast(DTensor, as_part(own.to(parameter.device), parameter)).full_tensor()
            else:
                yield name, own

    def scatter(self, whole: Mapping[str, Tensor], of: Of) -> None:
        for name, parameter in self.own.items():
            moved = whole[name].to(parameter.device)
            if isinstance(parameter, DTensor):
                placed = parameter.device_mesh, parameter.placements
                moved = distribute_tensor(moved, *placed, src_data_rank=None).to_local()
            of(parameter).copy_(moved)

    def norm(self) -> Tensor:
        return gradient_norm([each for each in self.own.values() if each.grad is not None])

    def set_scale(self, factor: float) -> None:
        for layer in self._layers:
            layer.scaling[lora.ADAPTER] = factor


def as_part(own: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part as a part of a whole of the parameter's shape, if the parameter is sharded."""
    if not isinstance(parameter, DTensor):
        return own
    shape, stride = parameter.shape, parameter.stride()
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(own, mesh, placements, run_check=False, shape=shape, stride=stride)


@dataclass(frozen=True)
class AdamStep:
    """AdamW's values of one step; weight decay is decoupled and acts on every trained parameter.

    Attributes:
        max_norm: largest gradient norm; 0: no clipping.
    """

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float = 0.0
    max_norm: float = 0.0


def take_step(weights: TrainedWeights, step: AdamStep) -> float:
    """Clip the gradients, take an AdamW step, and drop the gradients; returns their norm before clipping.

    Raises:
        NonFiniteError: the norm is not finite. Weights and optimizer are unchanged; the gradients are dropped.
    """
    optimizer, norm = weights.optimizer, weights.norm()
    size = float(norm)
    if not math.isfinite(size):
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteError(f"gradient norm {size}: the optimizer step was not taken", [])
    if step.max_norm > 0:
        clip_gradients([each for each in weights.own.values() if each.grad is not None], step.max_norm, norm)
    values = {"lr": step.lr, "betas": step.betas, "eps": step.eps, "weight_decay": step.weight_decay}
    for group in optimizer.param_groups:
        group.update(values)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return size
