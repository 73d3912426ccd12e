"""The importance ratio of a token."""

import math

from torch import Tensor

from corerl.contracts.losses import Mean

MAX_LOG_RATIO = 20.0
LOG2_E = math.log2(math.e)


def importance_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """exp(log pi - log pi_old), (b, T), with the gradient of ``log_probs``.

    The log-ratio is clamped to ±20, as is common, so that terms and gradients are finite for any log-probs.
    """
    log2_ratio = (log_probs - old_log_probs).mul_(LOG2_E)
    bound = MAX_LOG_RATIO * LOG2_E
    return log2_ratio.clamp(-bound, bound).exp2_()  # in base 2 because on CPU exp takes four times as long as exp2


def share(tokens: Tensor, response_mask: Tensor) -> Mean:
    """How many of the response tokens are among ``tokens``; both (b, T) bool."""
    return Mean((tokens & response_mask).sum(), response_mask.sum())
