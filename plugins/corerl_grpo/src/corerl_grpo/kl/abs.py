"""The absolute log-ratio: a distance of the policies, not an estimator of the KL divergence.

With d = log pi - log pi_ref::

    |d|

Its derivative by log pi is the sign of d, a step at d = 0. Where policy and reference are one model, as in the first
update of a run, d is rounding: as a loss the term then adds ±1 by a toss of a coin that changes with the cut of the
mini-batch. In the reward only the value counts. ``abs+`` has the value and no step.

Among the choices of RLHF libraries since Ziegler et al. 2019, arXiv 1909.08593; for k1, k2 and k3 see Schulman 2020,
"Approximating KL divergence".
"""

from torch import Tensor


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(b, T) in, (b, T) out."""
    return (log_probs - ref_log_probs).abs()
