"""The forms with ``+``: the value of a KL type with the gradient of k2.

With d = log pi - log pi_ref, k2 = d² / 2 and sg the stop of the gradient::

    sg(base) + k2 - sg(k2)

Reason: KL(pi || pi_ref) is a mean over responses of pi, so its gradient is the mean of d · grad log pi (the term grad d
itself has mean 0), and d · grad log pi is the gradient of k2. As a loss, k1 has mean gradient 0, and k3 has the
gradient of the other direction, KL(pi_ref || pi). This holds for responses of the policy itself.

Schulman 2020, "Approximating KL divergence", for the values; Liu et al. 2025, "Rethinking KL Regularization in RLHF",
arXiv 2510.01555, for the gradients.
"""

import torch
from torch import Tensor

from corerl.contracts.kl_types import KLType
from corerl_grpo.kl.abs import absolute
from corerl_grpo.kl.kl import kl
from corerl_grpo.kl.low_var_kl import low_var_kl
from corerl_grpo.kl.mse import mse


def kl_plus(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The value of k1; (b, T) in, (b, T) out."""
    return _straight_through(kl, log_probs, ref_log_probs)


def abs_plus(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The value of the absolute log-ratio; (b, T) in, (b, T) out."""
    return _straight_through(absolute, log_probs, ref_log_probs)


def low_var_kl_plus(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The value of k3; (b, T) in, (b, T) out."""
    return _straight_through(low_var_kl, log_probs, ref_log_probs)


def _straight_through(base: KLType, log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    with torch.no_grad():
        value = base(log_probs, ref_log_probs)
    gradient = mse(log_probs, ref_log_probs)
    return value + (gradient - gradient.detach())
