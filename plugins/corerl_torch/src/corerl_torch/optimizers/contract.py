"""Optimizers: the change of the weights by their gradients."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from corerl.contracts.kinds import fact

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor, nn

    from corerl.contracts.config import OptimConfig

KEY = "actor.optim.optimizer"


@dataclass(frozen=True)
class OptimizerFacts:
    """Facts of an optimizer."""

    sharded: bool = fact(
        True, "strategy fsdp can use it: its state has the shape of the weights, as DTensors, or it has StoresState"
    )


class OptimizerFactory(Protocol):
    """Builds the optimizer of one model; options of the entry are keyword arguments."""

    def __call__(
        self, model: "nn.Module", groups: "list[dict[str, Any]]", config: "OptimConfig"
    ) -> "torch.optim.Optimizer":
        """
        Args:
            model: of transformers; its parameters may be DTensors.
            groups: the trained weights, with two or more dimensions apart from others, each with its ``weight_decay``.
                Groups may be split.
            config: learning rate, betas, epsilon.
        """
        ...


@runtime_checkable
class StartsState(Protocol):
    """An optimizer whose state of a weight differs from AdamW's: checkpoints of ``fsdp`` ask for its beginning."""

    def initial_state(self, parameter: "Tensor") -> "dict[str, Tensor]":
        """The state of a weight before its first update, with the names and shapes of later ones."""
        ...


@runtime_checkable
class StoresState(Protocol):
    """An optimizer whose state of a weight on this rank cannot be read by other ranks; ``fsdp`` stores tensors instead
    that have the shape of the weights.
    """

    def stored(self, parameter: "Tensor") -> "dict[str, Tensor]":
        """Copies of the state as tensors of the weight's shape, divided as the weight is; scalars as they are."""
        ...

    def take(self, parameter: "Tensor", stored: "Mapping[str, Tensor]") -> None:
        """Make tensors of :meth:`stored`, read from a checkpoint, the state."""
        ...
