"""KL types: estimators of KL(pi || pi_ref) for each token."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = {"logits": "computes (b, T, V) log-probs of the whole vocabulary"}
"""need of an entry -> its effect on the run"""


class KLType(Protocol):
    """(b, T) log-probs of the sampled tokens under policy and reference in, (b, T) KL terms out; differentiable in
    ``log_probs``.

    An entry with need ``logits`` gets (b, T, V) log-probs of the whole vocabulary instead, 0 outside the responses.
    """

    def __call__(self, log_probs: "Tensor", ref_log_probs: "Tensor") -> "Tensor": ...
