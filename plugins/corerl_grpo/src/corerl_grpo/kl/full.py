"""The KL divergence itself, over the whole vocabulary.

::

    sum_v pi(v) (log pi(v) - log pi_ref(v))

k1 and k3 estimate this number from one token (Schulman 2020, "Approximating KL divergence"); ``full`` has no variance.
It holds the log-probs of the vocabulary under both models in memory. A token of probability 0 adds 0 for any log-probs,
-inf included; a token that only the reference excludes makes the divergence infinite.
"""

import torch
from torch import Tensor


def full(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(b, T, V) log-probs in, (b, T) out."""
    probabilities = log_probs.exp()
    difference = torch.where(probabilities > 0, log_probs - ref_log_probs, 0.0)
    return (probabilities * difference).sum(dim=-1)
