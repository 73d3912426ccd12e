"""The low-variance, unbiased, never negative estimator k3 of KL(pi || pi_ref).

With d = log pi - log pi_ref::

    k3 = exp(-d) + d - 1

Schulman 2020, "Approximating KL divergence". d is clamped to ±20 and the result to ±10, as is common, so that a single
token far from the reference cannot ruin a run.
"""

from torch import Tensor


def low_var_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(b, T) in, (b, T) out."""
    difference = (log_probs - ref_log_probs).clamp(-20.0, 20.0)
    return ((-difference).exp() + difference - 1).clamp(-10.0, 10.0)
