"""The absolute log-ratio: a distance of the policies, not an estimator of the KL divergence.

With d = log pi - log pi_ref::

    |d|

Its derivative with respect to log pi is the sign of d, with a step at d = 0. If policy and reference are the same
model, as in the first update of a run, d is rounding noise: as a loss the term then adds a random ±1 that changes with
the division of the mini-batch. In the reward only the value counts. ``abs+`` has the same value without the step.

Among the choices of RLHF libraries since Ziegler et al. 2019, arXiv 1909.08593; for k1, k2 and k3 see Schulman 2020,
"Approximating KL divergence".
"""

from torch import Tensor


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(b, T) in, (b, T) out."""
    return (log_probs - ref_log_probs).abs()
