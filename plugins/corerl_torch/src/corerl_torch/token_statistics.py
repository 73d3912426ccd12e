"""Log-prob of a token, entropy and Σπ², with their gradients by the logits z, with pi = softmax(z / temperature)::

    d log pi(y) / dz = (1[y] - pi) / temperature
    d H / dz         = -pi (log pi + H) / temperature
    d S / dz         = 2 pi (pi - S) / temperature          S = Σ pi²

autograd would keep tensors of several times the size of the logits for these three; this code keeps only the logits,
in their own dtype. Compiled, each direction reads them and makes no float32 tensor of their size.

With a mask of kept tokens (truncated sampling) pi is over these: z is -inf elsewhere, pi 0, and so is the gradient.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from corerl_torch.kept_tokens import EXCLUDED


class TokenStatistics(NamedTuple):
    """(N,) float32 each; entropy in nats."""

    log_probs: Tensor
    entropy: Tensor
    sum_pi_squared: Tensor


def log_distribution(logits: Tensor, temperature: float, kept: Tensor | None = None) -> Tensor:
    """(N, V) float32, log softmax(logits / temperature); over the kept tokens, and -inf elsewhere, with (N, V) bool."""
    if kept is not None:
        logits = logits.masked_fill(~kept, -torch.inf)
    if temperature != 1.0:
        logits = logits.float() / logits.new_full((), temperature, dtype=torch.float32)  # exact, also on CUDA
    return torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def token_statistics(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    entropy: bool,
    sum_pi_squared: bool,
    compiled: bool = False,
    kept: Tensor | None = None,
) -> TokenStatistics:
    """Statistics of softmax(logits / temperature); differentiable.

    Args:
        logits: (N, V).
        targets: (N,) int64, the tokens whose log-probs are wanted.
        entropy, sum_pi_squared: whether to compute them; otherwise 0.
        compiled: with ``torch.compile``.
        kept: (N, V) bool, the tokens that the distribution is over, the target included; None: all.
    """
    apply: Any = _TokenStatistics.apply
    return TokenStatistics(*apply(logits, targets, temperature, entropy, sum_pi_squared, compiled, kept))


def in_chunks(
    statistics: Callable[..., Mapping[str, Tensor]], columns: Sequence[Tensor], size: int | None
) -> dict[str, Tensor]:
    """Name -> (N, ...) statistics of (N, ...) columns, the hidden states first; logits of ``size`` exist at a time.

    The backward pass computes the logits of a chunk again.
    """
    total = len(columns[0])
    size = size or max(1, total)
    parts = []
    for chunk in zip(*(torch.split(column, size) for column in columns), strict=True):
        if total > size and torch.is_grad_enabled():
            parts.append(checkpoint(statistics, *chunk, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(statistics(*chunk))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def of_distribution(
    distribution: Tensor, targets: Tensor, wanted: Collection[str], *, truncated: bool = False
) -> dict[str, Tensor]:
    """The wanted statistics of (N, V) log-probs of a whole vocabulary.

    Args:
        truncated: excluded tokens have -inf; their ``vocabulary_log_probs`` are ``EXCLUDED``.
    """
    values = {}
    if "log_probs" in wanted:
        values["log_probs"] = distribution.gather(1, targets[:, None]).squeeze(1)
    if truncated:
        distribution = distribution.clamp(min=EXCLUDED)
    values["vocabulary_log_probs"] = distribution
    if "entropy" in wanted:
        pi = distribution.exp()  # the gradient of entr at 0 is infinite
        values["entropy"] = (-(pi * distribution) if truncated else torch.special.entr(pi)).sum(dim=-1)
    if "sum_pi_squared" in wanted:
        values["sum_pi_squared"] = (2 * distribution).exp().sum(dim=-1)
    return values


class _TokenStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        sum_pi_squared: bool,
        compiled: bool,
        kept: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        answer = _function(_statistics, compiled, logits, targets, kept)
        log_probs, own_entropy, own_sum = answer(temperature, entropy, sum_pi_squared)
        ctx.save_for_backward(logits, targets, log_probs, own_entropy, own_sum, kept)
        ctx.temperature, ctx.compiled = temperature, compiled
        ctx.entropy, ctx.sum_pi_squared = entropy, sum_pi_squared
        ctx.set_materialize_grads(False)
        return log_probs, own_entropy, own_sum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None, None, None]:
        by_log_probs, by_entropy, by_sum = gradients
        logits, targets, log_probs, entropy, sum_pi_squared, kept = ctx.saved_tensors
        by_entropy = by_entropy if ctx.entropy else None
        by_sum = by_sum if ctx.sum_pi_squared else None
        rows = torch.zeros_like(log_probs)  # factor of -pi
        if by_log_probs is not None:
            rows = rows + by_log_probs
        if by_entropy is not None:
            rows = rows + by_entropy * entropy
        if by_sum is not None:
            rows = rows + 2 * by_sum * sum_pi_squared
        places = targets[:, None]
        of_targets = logits.gather(1, places).float()
        normalizer = of_targets / ctx.temperature - log_probs[:, None]
        rest = (normalizer, rows, by_entropy, by_sum)
        result = _function(_gradient, ctx.compiled, logits, kept, *rest)(ctx.temperature, logits.dtype)
        if by_log_probs is not None:
            at_targets = _gradient(of_targets, None, *rest, ctx.temperature, torch.float32)
            at_targets += by_log_probs[:, None] / ctx.temperature
            result.scatter_(1, places, at_targets.to(result.dtype))
        return result, None, None, None, None, None, None


def _statistics(
    logits: Tensor, targets: Tensor, kept: Tensor | None, temperature: float, entropy: bool, sum_pi_squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    distribution = log_distribution(logits, temperature, kept)
    log_probs = distribution.gather(1, targets[:, None]).squeeze(1)
    own_entropy, own_sum = torch.zeros_like(log_probs), torch.zeros_like(log_probs)
    if entropy or sum_pi_squared:
        pi = distribution.exp()
        own_entropy = torch.special.entr(pi).sum(dim=-1) if entropy else own_entropy
        own_sum = pi.square_().sum(dim=-1) if sum_pi_squared else own_sum
    return log_probs, own_entropy, own_sum


def _gradient(
    logits: Tensor,
    kept: Tensor | None,
    normalizer: Tensor,
    rows: Tensor,
    by_entropy: Tensor | None,
    by_sum: Tensor | None,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient without the term 1[y]; ``normalizer`` (N, 1) is log Σ exp(z / temperature)."""
    pi = (logits.float() / temperature if temperature != 1.0 else logits.float()).sub(normalizer).exp_()
    if kept is not None:
        pi = pi.masked_fill_(~kept, 0.0)
    result = pi * -rows[:, None]
    if by_entropy is not None:
        result += torch.special.entr(pi).mul_(by_entropy[:, None])
    if by_sum is not None:
        result += pi.square().mul_(2 * by_sum[:, None])
    if temperature != 1.0:
        result /= temperature
    return result.to(dtype)


def _function(plain: Callable[..., Any], compiled: bool, *tensors: Tensor | None) -> Callable[..., Any]:
    """``plain`` with these as its first arguments; compiled once for any number of rows."""
    if not compiled:
        return functools.partial(plain, *tensors)
    detached = [None if tensor is None else tensor.detach() for tensor in tensors]  # detached, whether trained or not
    for tensor in detached:
        if tensor is not None:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return functools.partial(_compile(plain), *detached)


@functools.cache
def _compile(plain: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(plain)
