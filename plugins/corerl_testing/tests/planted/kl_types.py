"""Wrong KL types."""

from typing import Any

import torch
from torch import Tensor

from corerl.contracts.facts import Claims
from planted.fault import Fault
from planted.losses import doubled_backward, remembered_scale


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """d."""
    return log_probs - ref_log_probs


def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """d² / 2."""
    return (log_probs - ref_log_probs) ** 2 / 2


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """exp(-d) + d - 1, bounded."""
    difference = (log_probs - ref_log_probs).clamp(-20, 20)
    return (torch.exp(-difference) + difference - 1).clamp(-10, 10)


def k3_with_the_gradient_of_k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The value of one, the gradient of the other."""
    gradient = k2(log_probs, ref_log_probs)
    return k3(log_probs, ref_log_probs).detach() + gradient - gradient.detach()


def full(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Over the vocabulary."""
    possible = torch.isfinite(log_probs)
    policy, ref = torch.where(possible, log_probs, 0.0), torch.where(possible, ref_log_probs, 0.0)
    return torch.where(possible, policy.exp() * (policy - ref), 0.0).sum(dim=-1)


def arguments_swapped(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return ref_log_probs - log_probs


def gradient_of_k2_reversed(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    gradient = k2(log_probs, ref_log_probs)
    return k3(log_probs, ref_log_probs).detach() + gradient.detach() - gradient


def full_with_the_wrong_sign(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return -full(log_probs, ref_log_probs)


def without_bound(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return torch.exp((log_probs - ref_log_probs) ** 2) - 1


def batch_mean(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return (log_probs - ref_log_probs).mean().expand_as(log_probs)


def sum_of_the_row(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return (log_probs - ref_log_probs).sum(dim=1)


def without_minus_one(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k3(log_probs, ref_log_probs) + 1


def stopped(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k3(log_probs.detach(), ref_log_probs)


def root(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k2(log_probs, ref_log_probs).sqrt()


def modifies_its_input(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    terms = log_probs - ref_log_probs
    ref_log_probs.zero_()
    return terms


def noisy(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k1(log_probs, ref_log_probs) * torch.rand(())


def loops_over_tokens(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return torch.stack([k1(log_probs[:, i], ref_log_probs[:, i]) for i in range(log_probs.shape[1])], dim=1)


def in_16_bits(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k2(log_probs.half(), ref_log_probs.half()).to(log_probs.dtype)


def remembers_a_scale(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k2(log_probs, ref_log_probs) / remembered_scale(ref_log_probs)


def wrong_backward(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return doubled_backward(k2(log_probs, ref_log_probs))


def wrong_backward_beside_detach(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return doubled_backward(k3_with_the_gradient_of_k2(log_probs, ref_log_probs))


def naive_full(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return (log_probs.exp() * (log_probs - ref_log_probs)).sum(dim=-1)


def gradient_of_impossible_tokens(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    terms = log_probs.exp() * (log_probs - ref_log_probs)
    return torch.where(torch.isfinite(log_probs), terms, 0.0).sum(dim=-1)


def _fault(wrong: Any, flaw: str, check: str, reason: str, right: Any = k3, **facts: Any) -> Fault:
    return Fault("kl_types", wrong.__name__, flaw, wrong, right, check, reason, facts)


def _claims(name: str, wrong: Any, flaw: str, reason: str, claims: Claims, right: Any, was: Claims) -> Fault:
    return Fault("kl_types", name, flaw, wrong, right, "claims", reason, {"claims": was}, {"claims": claims})


FAULTS = [
    _fault(arguments_swapped, "policy and reference are swapped", "mean_is_the_divergence", "it must be above 0", k1),
    _fault(
        gradient_of_k2_reversed,
        "the straight-through gradient has the wrong sign",
        "pulls_towards_the_reference",
        "its mean gradient leads away from the reference",
        k3_with_the_gradient_of_k2,
    ),
    _fault(
        full_with_the_wrong_sign,
        "the divergence is negative",
        "pulls_towards_the_reference",
        "its mean gradient leads away from the reference",
        full,
        needs={"logits"},
    ),
    _fault(
        without_bound, "a far token overflows", "finite_at_extreme_ratios", "with log-ratios of ±50 the terms hold inf"
    ),
    _fault(
        batch_mean,
        "terms are averaged over the batch",
        "tokens_are_independent",
        "with the tokens that stand beside one",
        k1,
    ),
    _fault(
        sum_of_the_row,
        "there is a term for each row",
        "shape_and_dtype",
        "the terms have the shape (5,) where (5, 6) is right",
        k1,
    ),
    _fault(
        without_minus_one,
        "1 is not subtracted",
        "zero_where_the_policies_agree",
        "where policy and reference are equal the term is 1, not 0",
    ),
    _fault(stopped, "the policy is detached", "differentiable", "its terms carry no gradient of log_probs"),
    _fault(
        root,
        "the gradient of a square root is infinite at 0",
        "unchanged_by_rounding",
        "where policy and reference agree its gradient is not finite",
        k2,
    ),
    _fault(
        modifies_its_input,
        "the reference is cleared in place",
        "inputs_untouched",
        "it modifies its input ref_log_probs",
        k1,
    ),
    _fault(noisy, "noise is multiplied", "deterministic", "two calls with the same inputs give different terms", k1),
    _fault(loops_over_tokens, "there is a loop over tokens", "vectorised", "it loops in Python", k1),
    _fault(in_16_bits, "log-probs are rounded to float16", "keeps_precision", "it computes in float16 inside", k2),
    _fault(
        remembers_a_scale,
        "the scale of the first batch of each shape is kept",
        "same_in_a_fresh_process",
        "it remembers earlier calls",
        k2,
    ),
    _fault(
        wrong_backward,
        "a hand-written backward is twice too large",
        "gradient_matches_differences",
        "the backward of its torch.autograd.Function is wrong",
        k2,
    ),
    _fault(
        wrong_backward_beside_detach,
        "the straight-through gradient is twice too large",
        "gradient_matches_differences",
        "the backward of its torch.autograd.Function is wrong",
        k3_with_the_gradient_of_k2,
    ),
    _fault(
        naive_full,
        "impossible tokens are 0 times infinity",
        "shape_and_dtype",
        "the terms hold nan",
        full,
        needs={"logits"},
    ),
    _fault(
        gradient_of_impossible_tokens,
        "impossible tokens have the gradient NaN",
        "differentiable",
        "the gradients hold nan",
        full,
        needs={"logits"},
    ),
    _claims(
        "claims_the_gradient_of_k3",
        k3,
        "an unbiased gradient is claimed, which is that of the other direction",
        "it claims an unbiased KL value and gradient",
        Claims("unbiased", "KL value and gradient"),
        k1,
        Claims("unbiased", "KL value"),
    ),
    _claims(
        "claims_too_little",
        k3_with_the_gradient_of_k2,
        "a bias is claimed of the exact value and gradient",
        "it claims a bias",
        Claims("surrogate", "KL value"),
        k3_with_the_gradient_of_k2,
        Claims("unbiased", "KL value and gradient"),
    ),
]
