"""Divergences between policy P and teacher Q at each token, over the whole vocabulary or over bins of it.

D is the divergence, w of a bin is P times the slope of D by P, up to a multiple of P::

    reverse_kl   D = KL(P || Q)                                  w = P log(P / Q)
    forward_kl   D = KL(Q || P)                                  w = -Q
    jsd          D = beta KL(Q || M) + (1 - beta) KL(P || M)     w = (1 - beta) P log(P / M)

with M = beta Q + (1 - beta) P, the generalised Jensen-Shannon divergence of Agarwal et al. 2023 (GKD), arXiv
2306.13649, section 3. jsd / beta tends to forward_kl for beta → 0, jsd / (1 - beta) to reverse_kl for beta → 1.

Bins of the top k: the k tokens that the teacher finds most probable are a bin each, all others together are one more.
The result is the exact divergence of the two coarser distributions: never larger than that of the vocabulary (data
processing inequality), and equal to it if k is the size of the vocabulary.

With p = softmax(z / temperature) and b the bin of a token j, the gradient by the logits z is::

    dD / dz_j = (p_j w_b / P_b - p_j Σ w) / temperature

autograd would keep several tensors of the size of the logits; this code keeps the logits alone.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

Divergence = Literal["reverse_kl", "forward_kl", "jsd"]


def divergence(
    logits: Tensor,
    teacher: Tensor,
    kind: Divergence,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    top: Tensor | None = None,
) -> Tensor:
    """(n,) divergences in nats, float32 (float64 for such logits); differentiable by the logits.

    Args:
        logits: (n, V) of the policy.
        teacher: (n, V) log-probs of the teacher; or (n, k + 1), of the bins of ``top`` and of the rest.
        beta: of ``jsd``, in (0, 1).
        temperature: of the policy's distribution.
        top: (n, k) int64, different tokens; None: every token is a bin.
    """
    apply: Any = _Divergence.apply
    found: Tensor = apply(logits, teacher, kind, beta, temperature, top)
    return found


def bins(log_probs: Tensor, top: Tensor) -> Tensor:
    """(n, k + 1) log-probs of the tokens ``top`` (n, k) and of all others together, of (n, V) log-probs."""
    rest = log_probs.scatter(1, top, -torch.inf).logsumexp(dim=1, keepdim=True)
    return torch.cat([log_probs.gather(1, top), rest], dim=1)


def exact(logits: Tensor) -> Tensor:
    """In float32; float64 stays."""
    return logits if logits.dtype == torch.float64 else logits.float()


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, teacher: Tensor, kind: Divergence, beta: float, temperature: float, top: Tensor | None
    ) -> Tensor:
        policy = _log_softmax(logits, temperature)
        ctx.save_for_backward(logits, teacher, top)
        ctx.kind, ctx.beta, ctx.temperature = kind, beta, temperature
        return _value(policy if top is None else bins(policy, top), teacher.to(policy.dtype), kind, beta)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        logits, teacher, top = ctx.saved_tensors
        policy = _log_softmax(logits, ctx.temperature)
        own = policy if top is None else bins(policy, top)
        weights = _weights(own, teacher.to(policy.dtype), ctx.kind, ctx.beta)
        result = policy.exp() * -weights.sum(dim=1, keepdim=True)
        if top is None:
            result += weights
        else:
            rest = (policy - own[:, -1:]).exp() * weights[:, -1:]
            result += torch.where(own[:, -1:] == -torch.inf, 0.0, rest).scatter(1, top, weights[:, :-1])
        result *= gradients[0][:, None] / ctx.temperature
        return result.to(logits.dtype), None, None, None, None, None


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    wide = exact(logits)
    return torch.log_softmax(wide if temperature == 1.0 else wide / temperature, dim=-1)


def _value(policy: Tensor, teacher: Tensor, kind: Divergence, beta: float) -> Tensor:
    """(n,) divergences of (n, bins) log-probs."""
    if kind == "reverse_kl":
        return _terms(policy, policy - teacher).sum(dim=1)
    if kind == "forward_kl":
        return _terms(teacher, teacher - policy).sum(dim=1)
    middle = _mixture(policy, teacher, beta)
    terms = beta * _terms(teacher, teacher - middle) + (1 - beta) * _terms(policy, policy - middle)
    return terms.sum(dim=1)


def _weights(policy: Tensor, teacher: Tensor, kind: Divergence, beta: float) -> Tensor:
    """(n, bins): P times the slope of the divergence by P; a constant slope has no effect."""
    if kind == "reverse_kl":
        return _terms(policy, policy - teacher)
    if kind == "forward_kl":
        return -teacher.exp()
    return (1 - beta) * _terms(policy, policy - _mixture(policy, teacher, beta))


def _mixture(policy: Tensor, teacher: Tensor, beta: float) -> Tensor:
    return torch.logaddexp(teacher + math.log(beta), policy + math.log1p(-beta))


def _terms(of: Tensor, values: Tensor) -> Tensor:
    """exp(of) · values, 0 if ``of`` has no mass."""
    return torch.where(of == -torch.inf, 0.0, of.exp() * values)
