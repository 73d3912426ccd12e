"""The estimator k1 of KL(pi || pi_ref): unbiased, of high variance, negative on some tokens.

::

    k1 = log pi - log pi_ref

Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html. For the reward, not for the loss:
as a loss its gradient is the gradient of log pi, whose mean over the policy's own responses is 0 for any reference.
``kl+`` has the right gradient.
"""

from torch import Tensor


def kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(b, T) in, (b, T) out."""
    return log_probs - ref_log_probs
