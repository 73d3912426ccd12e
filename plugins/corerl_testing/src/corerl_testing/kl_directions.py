"""The direction of a KL type: its value and gradient over a whole small vocabulary, in float64."""

import torch
from torch import Tensor

from corerl.contracts.kl_types import KLType
from corerl.registry import Selected
from corerl_testing.differences import gradient_of_the_value
from corerl_testing.results import CheckSkipped
from corerl_testing.tensors import expect, generator

CONTEXTS, VOCABULARY = 12, 7


def contexts(spread: float = 0.5) -> tuple[Tensor, Tensor]:
    """Logits of the policy and log-probs of the reference, (CONTEXTS, VOCABULARY) float64 each.

    Args:
        spread: the size of log pi - log pi_ref.
    """
    random = generator(10)
    logits, change = torch.randn(2, CONTEXTS, VOCABULARY, generator=random, dtype=torch.float64)
    return logits, (logits + spread * change).log_softmax(dim=1)


def terms(selected: Selected[KLType], log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The KL terms of each context: (CONTEXTS, VOCABULARY), one for each token; (CONTEXTS, 1) with need ``logits``."""
    kl = selected.load()
    if "logits" in selected.entry.needs:
        return kl(log_probs[:, None], ref_log_probs[:, None])
    return kl(log_probs, ref_log_probs)


def expected_terms(selected: Selected[KLType], log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(CONTEXTS,) mean of the terms over tokens sampled from the policy, whose probabilities have no gradient."""
    found = terms(selected, log_probs, ref_log_probs)
    return found.squeeze(1) if "logits" in selected.entry.needs else (log_probs.exp().detach() * found).sum(dim=1)


def gradient_is_of_the_value(selected: Selected[KLType]) -> None:
    """
    Raises:
        CheckFailed: the gradient is not that of the value, and stopped tensors do not explain it.
        CheckSkipped: the gradient is that of the value with stopped tensors held.
    """
    logits, ref = contexts()
    point = logits.log_softmax(dim=1)
    places = torch.ones_like(point, dtype=torch.bool)
    found = gradient_of_the_value(lambda leaf: terms(selected, leaf, ref).sum(), point, places)
    if found:
        raise CheckSkipped(f"its gradient {found} (relative); it is exact with the stopped tensors held")


def mean_is_the_divergence(selected: Selected[KLType]) -> None:
    """
    Raises:
        CheckFailed: the mean is negative.
        CheckSkipped: the mean differs from KL(policy || reference).
    """
    logits, ref = contexts()
    policy = logits.log_softmax(dim=1)
    divergence = (policy.exp() * (policy - ref)).sum(dim=1)
    mean = expected_terms(selected, policy, ref)
    worst = int((mean / divergence).argmin())
    expect(
        bool((mean > 0).all()),
        f"over tokens of the policy its mean is {float(mean[worst]):.3g} where KL(policy || reference) is "
        f"{float(divergence[worst]):.3g}: it must be above 0, and takes log_probs before ref_log_probs",
    )
    ratio = mean / divergence
    if not torch.allclose(ratio, torch.ones_like(ratio), rtol=1e-6):
        raise CheckSkipped(
            f"over tokens of the policy its mean is {float(ratio.min()):.3g} to {float(ratio.max()):.3g} times "
            "KL(policy || reference): it is biased"
        )


def pulls_towards_the_reference(selected: Selected[KLType]) -> None:
    """A step of the logits straight to the reference's lowers the mean over the policy's tokens.

    That direction, log pi_ref - log pi, is the natural gradient of KL(policy || reference).

    Raises:
        CheckFailed: the step raises the mean.
        CheckSkipped: the mean gradient is 0.
    """
    for spread in (0.5, 0.01):
        logits, ref = contexts(spread)
        logits.requires_grad_()
        policy = logits.log_softmax(dim=1)
        (gradient,) = torch.autograd.grad(expected_terms(selected, policy, ref).sum(), logits)
        away = policy.detach() - ref
        pull = (gradient * away).sum(dim=1)
        probabilities = policy.detach().exp()
        variance = (probabilities * away**2).sum(dim=1) - (probabilities * away).sum(dim=1) ** 2
        if float((pull / variance).abs().max()) <= 1e-9:
            raise CheckSkipped("its mean gradient is 0: as a loss it leads nowhere, so it is for the reward alone")
        worst = int((pull / variance).argmin())
        expect(
            bool((pull > 0).all()),
            "over tokens of the policy its mean gradient leads away from the reference: "
            f"{float((pull / variance)[worst]):.3g} times that of KL(policy || reference) along the way there",
        )
