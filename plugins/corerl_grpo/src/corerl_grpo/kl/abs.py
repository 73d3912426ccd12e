"""The absolute log-ratio: a distance of the policies, not an estimator of the KL divergence.

With d = log pi - log pi_ref::

    |d|

Among the choices of RLHF libraries since Ziegler et al. 2019, arXiv 1909.08593; for k1, k2 and k3 see Schulman 2020,
"Approximating KL divergence".
"""

from torch import Tensor


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(b, T) in, (b, T) out."""
    return (log_probs - ref_log_probs).abs()
