"""Objectives: the loss of a strategy's micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.experience import Experience
    from corerl.contracts.losses import Mean
    from corerl.contracts.token_outputs import TokenOutputs, Wanted


@dataclass(frozen=True)
class ObjectiveOutput:
    """One micro-batch's share.

    Attributes:
        loss: scalar to be minimised; the sum over the micro-batches is the mini-batch's loss.
        parts: named scalars with the same sum.
        metrics: means over any partition.
    """

    loss: "Tensor"
    parts: "Mapping[str, Tensor]" = field(default_factory=dict)
    metrics: "Mapping[str, Mean]" = field(default_factory=dict)


class Objective(Protocol):
    """Maps a model's outputs at the tokens of a micro-batch to a loss; ``batch`` has its ``loss_weights``."""

    @property
    def wanted(self) -> "frozenset[Wanted]":
        """The model's outputs in the loss."""
        ...

    def __call__(self, outputs: "TokenOutputs", batch: "Experience") -> ObjectiveOutput: ...
