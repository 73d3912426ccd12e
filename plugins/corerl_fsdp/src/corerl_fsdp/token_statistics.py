"""Log-prob of a token, entropy and Σπ², and their gradient by the logits z, with pi = softmax(z / temperature)::

    d log pi(y) / dz = (1[y] - pi) / temperature
    d H / dz         = -pi (log pi + H) / temperature
    d S / dz         = 2 pi (pi - S) / temperature          S = Σ pi²

What autograd would keep and add up for the three of them is several times the size of the logits; this keeps log pi
alone and makes one tensor more of that size in the backward pass.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class TokenStatistics(NamedTuple):
    """(N,) float32 each; entropy in nats."""

    log_probs: Tensor
    entropy: Tensor
    sum_pi_squared: Tensor


def log_distribution(logits: Tensor, temperature: float) -> Tensor:
    """(N, V) float32, log softmax(logits / temperature)."""
    if temperature != 1.0:
        logits = logits.float() / temperature
    return torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def token_statistics(
    logits: Tensor, targets: Tensor, temperature: float, *, entropy: bool, sum_pi_squared: bool
) -> TokenStatistics:
    """What softmax(logits / temperature) says; differentiable.

    Args:
        logits: (N, V).
        targets: (N,) int64, the tokens whose log-probs are wanted.
        entropy, sum_pi_squared: whether they are computed; 0 where not.
    """
    apply: Any = _TokenStatistics.apply
    return TokenStatistics(*apply(logits, targets, temperature, entropy, sum_pi_squared))


class _TokenStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, entropy: bool, sum_pi_squared: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        distribution = log_distribution(logits, temperature)
        log_probs = distribution.gather(1, targets[:, None]).squeeze(1)
        own_entropy = own_sum = torch.zeros_like(log_probs)
        if entropy or sum_pi_squared:
            pi = distribution.exp()
            own_entropy = torch.special.entr(pi).sum(dim=-1) if entropy else own_entropy
            own_sum = pi.square_().sum(dim=-1) if sum_pi_squared else own_sum.clone()
        else:
            own_sum = own_sum.clone()  # each output is a tensor of its own
        ctx.save_for_backward(distribution, targets, own_entropy, own_sum)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.entropy, ctx.sum_pi_squared = entropy, sum_pi_squared
        ctx.set_materialize_grads(False)
        return log_probs, own_entropy, own_sum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        by_log_probs, by_entropy, by_sum = gradients
        distribution, targets, entropy, sum_pi_squared = ctx.saved_tensors
        pi = distribution.exp()
        rows = torch.zeros_like(entropy)  # what multiplies -pi
        if by_log_probs is not None:
            rows = rows + by_log_probs
        if ctx.entropy and by_entropy is not None:
            rows = rows + by_entropy * entropy
        if ctx.sum_pi_squared and by_sum is not None:
            rows = rows + 2 * by_sum * sum_pi_squared
        result = pi * -rows[:, None]
        if ctx.entropy and by_entropy is not None:
            result += torch.special.entr(pi).mul_(by_entropy[:, None])
        if ctx.sum_pi_squared and by_sum is not None:
            result += pi.square().mul_(2 * by_sum[:, None])
        if by_log_probs is not None:
            result.scatter_add_(1, targets[:, None], by_log_probs[:, None])
        if ctx.temperature != 1.0:
            result /= ctx.temperature
        return result.to(ctx.dtype), None, None, None, None
