"""Tinker's losses: the terms of a token, whose plain sum over all tokens of a request is the loss.

With log pi of the trained model, log q of the sampler (``logprobs``), the advantage A and rho = pi / q::

    cross_entropy         -w log pi
    importance_sampling   -rho A
    ppo                   -min(rho A, clip(rho, low, high) A)
    cispo                 -sg(clip(rho, low, high)) A log pi
    dro                   -(A log pi - beta (log pi - log q)² / 2)

sg stops the gradient. Formulas and defaults are those of Tinker's documentation of losses, but for the clamp of
log rho to ±20, as in the losses of corerl-grpo. PPO: Schulman et al. 2017, arXiv 1707.06347, equation 7. CISPO: MiniMax
2025, arXiv 2506.13585, section 3.1. DRO: Richemond et al. 2024, arXiv 2405.19107, for each token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

LARGEST_LOG_RATIO = 20.0

Inputs = Mapping[str, Tensor]
"""of a loss, by name; the values of its config are among them, and broadcast"""


@dataclass(frozen=True)
class Loss:
    """A loss.

    Attributes:
        terms: (log pi, inputs) -> terms of the same shape.
        needs: inputs of each token.
        config: name -> default.
        per_token: names of the config that may be inputs of each token instead.
    """

    terms: Callable[[Tensor, Inputs], Tensor]
    needs: tuple[str, ...] = ("logprobs", "advantages")
    config: Mapping[str, float] = field(default_factory=dict)
    per_token: tuple[str, ...] = ()


def cross_entropy(log_probs: Tensor, inputs: Inputs) -> Tensor:
    return -log_probs * inputs["weights"]


def importance_sampling(log_probs: Tensor, inputs: Inputs) -> Tensor:
    return -_ratio(log_probs, inputs) * inputs["advantages"]


def ppo(log_probs: Tensor, inputs: Inputs) -> Tensor:
    ratio = _ratio(log_probs, inputs)
    return -torch.minimum(ratio * inputs["advantages"], _clipped(ratio, inputs) * inputs["advantages"])


def cispo(log_probs: Tensor, inputs: Inputs) -> Tensor:
    weights = _clipped(_ratio(log_probs.detach(), inputs), inputs)
    return -weights * inputs["advantages"] * log_probs


def dro(log_probs: Tensor, inputs: Inputs) -> Tensor:
    penalty = inputs["beta"] * (log_probs - inputs["logprobs"]).square() / 2
    return -(inputs["advantages"] * log_probs - penalty)


def _ratio(log_probs: Tensor, inputs: Inputs) -> Tensor:
    return (log_probs - inputs["logprobs"]).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def _clipped(ratio: Tensor, inputs: Inputs) -> Tensor:
    return torch.minimum(torch.maximum(ratio, inputs["clip_low_threshold"]), inputs["clip_high_threshold"])


CLIP = ("clip_low_threshold", "clip_high_threshold")

LOSSES = {
    "cross_entropy": Loss(cross_entropy, ("weights",)),
    "importance_sampling": Loss(importance_sampling),
    "ppo": Loss(ppo, config=dict(zip(CLIP, (0.8, 1.2), strict=True)), per_token=CLIP),
    "cispo": Loss(cispo, config=dict(zip(CLIP, (0.0, 4.0), strict=True)), per_token=CLIP),
    "dro": Loss(dro, config={"beta": 0.05}),
}
