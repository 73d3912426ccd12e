"""Value losses: per-token terms of a critic's loss."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from corerl.contracts.losses import LossOutput, Mean

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossOutput", "Mean", "ValueLoss", "ValueLossInputs"]


@dataclass(frozen=True)
class ValueLossInputs:
    """Inputs: b responses of one micro-batch, T response tokens, all finite.

    Attributes:
        values: (b, T) float32, the critic's prediction before each response token; carries the gradient.
        old_values: (b, T) float32, the same at the start of the step.
        returns: (b, T) float32, the target.
        response_mask: (b, T) bool. Elsewhere the terms are ignored.
    """

    values: "Tensor"
    old_values: "Tensor"
    returns: "Tensor"
    response_mask: "Tensor"


class ValueLoss(Protocol):
    """A function of each response alone; a metric ``clipfrac`` becomes ``critic/clipfrac``. With options it takes
    ``options``.
    """

    def __call__(self, inputs: ValueLossInputs) -> LossOutput: ...
