"""Policy losses: per-token terms; the core alone reduces them to a scalar."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from corerl.contracts.losses import LossOutput, Mean

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossOutput", "Mean", "PolicyLoss", "PolicyLossInputs", "TokenSelector"]

NEEDS = {
    "groups": "requires `rollout.n` of at least 2",
    "ref": "runs the reference model; `inputs.ref_log_probs`",
}
"""need of an entry -> its effect on the run"""


@dataclass(frozen=True)
class PolicyLossInputs:
    """Inputs: b responses of one micro-batch, T response tokens, all finite.

    Attributes:
        log_probs: (b, T) float32, log pi of the sampled tokens under the trained policy; carries the gradient.
        old_log_probs: (b, T) float32, log pi_old, under the policy at the start of the step.
        advantages: (b, T) float32.
        response_mask: (b, T) bool. Elsewhere the other tensors are 0, and terms are ignored.
        rollout_log_probs: (b, T) float32 from the rollout backend, or None.
        ref_log_probs: (b, T) float32 under the reference model, with need ``ref``.
        selected: (b, T) bool, the choice of the entry's ``select_tokens``.
        of_logits: name -> (b, T, ...), results of the entry's ``of_logits``; they carry the gradient.
    """

    log_probs: "Tensor"
    old_log_probs: "Tensor"
    advantages: "Tensor"
    response_mask: "Tensor"
    rollout_log_probs: "Tensor | None" = None
    ref_log_probs: "Tensor | None" = None
    selected: "Tensor | None" = None
    of_logits: "Mapping[str, Tensor] | None" = None


class PolicyLoss(Protocol):
    """A function of each response alone: the terms of a row do not depend on the other rows.

    A sequence-level loss spreads its term over the row's tokens: the aggregation then gives the paper's formula. With
    options it takes ``options``, an instance of its options dataclass. A loss of the whole mini-batch has a
    :class:`TokenSelector`, ``select_tokens="module:function"``.
    """

    def __call__(self, inputs: PolicyLossInputs) -> LossOutput: ...


class TokenSelector(Protocol):
    """Chooses tokens of a whole mini-batch, on all ranks, before it is cut; the loss gets the choice as ``selected``.

    It takes the options of its loss.

    Args:
        inputs: of all B responses of the mini-batch; ``log_probs`` are those of the policy just before this update,
            without gradient.
        uniforms: (B, T) float64, an independent number in [0, 1) for each token, the only source of randomness: the
            choice is then independent of the order of rows.

    Returns:
        (B, T) bool.
    """

    def __call__(self, inputs: PolicyLossInputs, uniforms: "Tensor") -> "Tensor": ...
