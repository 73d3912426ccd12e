"""Log-prob of a token, entropy and Σπ² from logits whose vocabulary is divided among tensor-parallel ranks.

With z the logits over the temperature, m their maximum and the sums over the whole vocabulary::

    s = Σ exp(z - m)        w = Σ exp(z - m) (z - m)        q = Σ exp(z - m)²

    log pi(y) = z_y - m - log s        H = log s - w / s        Σ pi² = q / s²

m takes one reduction over the ranks; s, w, q and z_y - m, which only one rank has, take one more together. The
gradient by a rank's own logits needs no reduction::

    d log pi(y) / dz = 1[y] - pi        d H / dz = -pi (log pi + H)        d Σ pi² / dz = 2 pi (pi - Σ pi²)

all over the temperature. Statistics are float32 for any logits; autograd keeps only the logits. With a mask of kept
tokens (truncated sampling) z is -inf elsewhere, and 0 · log 0 is 0.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from corerl_torch.token_statistics import TokenStatistics


class Part(NamedTuple):
    """This rank's part of the vocabulary.

    Attributes:
        start: the first token.
        size: number of tokens, without padding; may be 0.
        group: the tensor-parallel ranks; None for one rank.
    """

    start: int
    size: int
    group: Any


def vocabulary_parallel_statistics(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    part: Part,
    *,
    entropy: bool,
    sum_pi_squared: bool,
    kept: Tensor | None = None,
) -> TokenStatistics:
    """Statistics of softmax(logits / temperature); differentiable, equal on all ranks.

    Args:
        logits: (N, size) of the rank's own part, without padding.
        targets: (N,) int64, tokens of the whole vocabulary.
        entropy, sum_pi_squared: whether to compute them; otherwise 0.
        kept: (N, size) bool, the tokens of the own part that the distribution is over; None: all.
    """
    apply: Any = _Statistics.apply
    return TokenStatistics(*apply(logits, targets, temperature, part, entropy, sum_pi_squared, kept))


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        temperature: float,
        part: Part,
        entropy: bool,
        sum_pi_squared: bool,
        kept: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        scaled = _scaled(logits, temperature)
        if kept is not None:
            scaled = scaled.masked_fill(~kept, -torch.inf)
        maximum = scaled.amax(dim=-1) if part.size else scaled.new_full((len(scaled),), -torch.inf)
        _reduce(maximum, dist.ReduceOp.MAX, part)
        scaled = scaled - maximum[:, None]
        places = targets - part.start
        own = (places >= 0) & (places < part.size)
        places = torch.where(own, places, 0)[:, None]
        nothing = torch.zeros_like(maximum)
        of_targets = torch.where(own, scaled.gather(1, places)[:, 0], 0.0) if part.size else nothing
        weights = scaled.exp()
        weighted = (weights * _finite(scaled, kept)).sum(1) if entropy else nothing
        normalizer = weights.sum(1)
        squared = weights.square_().sum(1) if sum_pi_squared else nothing
        sums = torch.stack([normalizer, weighted, squared, of_targets])
        _reduce(sums, dist.ReduceOp.SUM, part)
        normalizer, weighted, squared, of_targets = sums
        log_sum = normalizer.log()
        own_entropy = log_sum - weighted / normalizer if entropy else nothing
        own_sum = squared / normalizer.square()
        ctx.save_for_backward(logits, places, own, maximum + log_sum, own_entropy, own_sum, kept)
        ctx.temperature, ctx.entropy, ctx.sum_pi_squared = temperature, entropy, sum_pi_squared
        ctx.set_materialize_grads(False)
        return of_targets - log_sum, own_entropy, own_sum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None, None, None]:
        by_log_probs, by_entropy, by_sum = (None if each is None else each[:, None] for each in gradients)
        logits, places, own, log_normalizer, entropy, sum_pi_squared, kept = ctx.saved_tensors
        log_pi = _scaled(logits, ctx.temperature) - log_normalizer[:, None]
        pi = log_pi.exp() if kept is None else log_pi.exp().masked_fill(~kept, 0.0)
        result = torch.zeros_like(pi) if by_log_probs is None else pi * -by_log_probs
        if ctx.entropy and by_entropy is not None:
            result -= pi * (log_pi + entropy[:, None]) * by_entropy
        if ctx.sum_pi_squared and by_sum is not None:
            result += 2 * pi * (pi - sum_pi_squared[:, None]) * by_sum
        if by_log_probs is not None and result.shape[1]:
            result.scatter_add_(1, places, by_log_probs * own[:, None])
        return (result / ctx.temperature).to(logits.dtype), None, None, None, None, None, None


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits.float() if temperature == 1.0 else logits.float() / temperature


def _finite(scaled: Tensor, kept: Tensor | None) -> Tensor:
    return scaled if kept is None else scaled.masked_fill(~kept, 0.0)


def _reduce(values: Tensor, operation: Any, part: Part) -> None:
    if part.group is not None:
        dist.all_reduce(values, operation, group=part.group)
