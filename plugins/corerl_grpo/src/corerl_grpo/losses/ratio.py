"""The importance ratio of a token."""

from torch import Tensor

from corerl.contracts.losses import Mean

MAX_LOG_RATIO = 20.0


def importance_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """exp(log pi - log pi_old), (b, T), with the gradient of ``log_probs``.

    The log-ratio is clamped to ±20, as is common, so terms and gradients are finite for any log-probs.
    """
    return (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def share(tokens: Tensor, response_mask: Tensor) -> Mean:
    """The share of the response tokens that are among ``tokens``; both (b, T) bool."""
    return Mean((tokens & response_mask).sum(), response_mask.sum())
