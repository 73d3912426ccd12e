"""Objectives: the loss of a strategy's micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.experience import Experience
    from corerl.contracts.losses import Mean
    from corerl.contracts.token_outputs import OfLogits, TokenOutputs, Wanted


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


class LossTerm(Protocol):
    """A further term of the policy's loss, beside policy loss, KL and entropy (hook ``loss_terms``).

    Attributes:
        name: of the part, the metric ``actor/<name>``.
        coefficient: of the part in the loss; the metric is without it.
        of_logits: a function of the logits whose results the term takes from ``outputs.of_logits``; None: of none.
    """

    name: str
    coefficient: float
    of_logits: "OfLogits | None"

    def __call__(self, outputs: "TokenOutputs", batch: "Experience") -> "Tensor":
        """(b, T) terms to be minimised, weighted as those of the policy loss; undefined where the mask is false."""
        ...


class Objective(Protocol):
    """Maps a model's outputs at the tokens of a micro-batch to a loss; ``batch`` has its ``loss_weights``."""

    @property
    def wanted(self) -> "frozenset[Wanted]":
        """The model's outputs in the loss."""
        ...

    def __call__(self, outputs: "TokenOutputs", batch: "Experience") -> ObjectiveOutput: ...
