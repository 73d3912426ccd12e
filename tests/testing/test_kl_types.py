"""Wrong KL types, and the checks that catch them."""

from typing import Any

import pytest
import torch
from torch import Tensor


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return log_probs - ref_log_probs


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    difference = (log_probs - ref_log_probs).clamp(-20, 20)
    return (torch.exp(-difference) + difference - 1).clamp(-10, 10)


def full(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    possible = torch.isfinite(log_probs)
    policy, ref = torch.where(possible, log_probs, 0.0), torch.where(possible, ref_log_probs, 0.0)
    return torch.where(possible, policy.exp() * (policy - ref), 0.0).sum(dim=-1)


@pytest.mark.parametrize(("kl", "facts"), [(k1, {}), (k3, {}), (full, {"needs_logits": True})])
def test_right_types_pass(outcomes: Any, kl: Any, facts: dict[str, Any]) -> None:
    assert {result.status for result in outcomes("kl_types", kl, **facts).values()} == {"ok"}


def without_clamp(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return torch.exp((log_probs - ref_log_probs) ** 2) - 1


def batch_mean(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return (log_probs - ref_log_probs).mean().expand_as(log_probs)


def sum_of_the_row(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return (log_probs - ref_log_probs).sum(dim=1)


def without_minus_one(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k3(log_probs, ref_log_probs) + 1


def stopped(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k3(log_probs.detach(), ref_log_probs)


def modifies_its_input(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    terms = log_probs - ref_log_probs
    ref_log_probs.zero_()
    return terms


def noisy(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return k1(log_probs, ref_log_probs) * torch.rand(())


def loops_over_tokens(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return torch.stack([k1(log_probs[:, i], ref_log_probs[:, i]) for i in range(log_probs.shape[1])], dim=1)


@pytest.mark.parametrize(
    ("kl", "check", "message"),
    [
        (without_clamp, "finite_at_extreme_ratios", "with log-ratios of ±50 the terms hold inf"),
        (batch_mean, "tokens_are_independent", "with the tokens that stand beside one"),
        (sum_of_the_row, "shape_and_dtype", "the terms have the shape (5,) where (5, 6) is right"),
        (
            without_minus_one,
            "zero_where_the_policies_agree",
            "where policy and reference are equal the term is 1, not 0",
        ),
        (stopped, "differentiable", "its terms carry no gradient of log_probs"),
        (modifies_its_input, "inputs_untouched", "it modifies its input ref_log_probs"),
        (noisy, "deterministic", "two calls with the same inputs give different terms"),
        (loops_over_tokens, "vectorised", "it loops in Python"),
    ],
)
def test_a_wrong_type_is_caught(failures: Any, kl: Any, check: str, message: str) -> None:
    assert message in failures("kl_types", kl, only=check)[check]


def test_a_type_that_takes_the_vocabulary_meets_impossible_tokens(failures: Any) -> None:
    def naive(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
        return (log_probs.exp() * (log_probs - ref_log_probs)).sum(dim=-1)

    def gradient_of_impossible_tokens(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
        terms = log_probs.exp() * (log_probs - ref_log_probs)
        return torch.where(torch.isfinite(log_probs), terms, 0.0).sum(dim=-1)

    assert "the terms hold nan" in failures("kl_types", naive, needs_logits=True)["shape_and_dtype"]
    reasons = failures("kl_types", gradient_of_impossible_tokens, needs_logits=True)
    assert "the gradients hold nan" in reasons["differentiable"]
