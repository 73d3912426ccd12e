"""The estimator k2 of KL(pi || pi_ref): never negative, of low variance, biased to third order in d.

With d = log pi - log pi_ref::

    k2 = d² / 2

Schulman 2020, "Approximating KL divergence". On-policy, the mean of its gradient d · grad log pi is the gradient of
the KL divergence, without bias (:mod:`corerl_grpo.kl.straight_through`).
"""

from torch import Tensor


def mse(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(b, T) in, (b, T) out."""
    return 0.5 * (log_probs - ref_log_probs).square()
