"""Objectives: what a strategy minimises on a micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.experience import Experience
    from corerl.contracts.losses import Mean
    from corerl.contracts.token_outputs import Output, TokenOutputs


@dataclass(frozen=True)
class ObjectiveOutput:
    """One micro-batch's share.

    Attributes:
        loss: scalar to be minimised; the mini-batch's loss is the sum over its micro-batches.
        parts: named scalars that add up over the micro-batches in the same way.
        metrics: means over any partition.
    """

    loss: "Tensor"
    parts: "Mapping[str, Tensor]" = field(default_factory=dict)
    metrics: "Mapping[str, Mean]" = field(default_factory=dict)


class Objective(Protocol):
    """Maps what the model says about the tokens of a micro-batch to a loss; ``batch`` has its ``loss_weights``."""

    @property
    def wanted(self) -> "frozenset[Output]":
        """Which outputs of the model the loss is made of."""
        ...

    def __call__(self, outputs: "TokenOutputs", batch: "Experience") -> ObjectiveOutput: ...
