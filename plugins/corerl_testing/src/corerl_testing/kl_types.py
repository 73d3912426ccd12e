"""Checks of KL types: the contract of :mod:`corerl.contracts.kl_types`.

No fact declares whether an estimator is unbiased (k1, k3 and full are, abs and k2 are not), whether its gradient is
that of its value (not for a form with ``+``), or whether the gradient has a step where the policies agree (abs has
one). These are reported: the check is skipped with the figure.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.kl_types import KLType
from corerl.registry import Selected
from corerl_testing import rounding
from corerl_testing.enumerable import claims
from corerl_testing.kl_directions import gradient_is_of_the_value, mean_is_the_divergence, pulls_towards_the_reference
from corerl_testing.results import Run
from corerl_testing.state import expect_precision, expect_the_same_elsewhere, explained
from corerl_testing.tensors import (
    expect,
    expect_equal,
    expect_finite,
    expect_shape,
    expect_vectorised,
    generator,
    in_both_dtypes,
)

Kl = Callable[[Tensor, Tensor], Tensor]
Pair = tuple[Tensor, Tensor]
ROWS, WIDTH, VOCABULARY = 5, 6, 7


def checks(selected: Selected[KLType]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for name, check in _CHECKS.items():
        yield name, partial(_in_both_dtypes, check, selected)
    yield "finite_at_extreme_ratios", partial(_in_both_dtypes, _finite_at_extreme_ratios, selected, spread=50.0)
    yield "vectorised", partial(_vectorised, selected)
    for name, over_vocabulary in _OVER_THE_VOCABULARY.items():
        yield name, partial(explained, partial(over_vocabulary, selected))
    yield "unchanged_by_rounding", partial(rounding.kl_type, selected)
    yield "same_in_a_fresh_process", partial(_same_in_a_fresh_process, selected)
    yield from claims.kl_checks(selected)


def example(
    selected: Selected[KLType], dtype: torch.dtype, *, rows: int = ROWS, width: int = WIDTH, spread: float = 1.0
) -> Pair:
    """Seeded log-probs of policy and reference, 0 outside the responses.

    The log-probs of the whole vocabulary include tokens impossible under the policy, and under both.

    Args:
        spread: the size of log pi - log pi_ref.
    """
    random = generator(8)
    inside = torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=random)
    if "logits" not in selected.entry.needs:
        ref = -torch.rand(rows, width, generator=random, dtype=torch.float64) - 0.1 - spread
        signs = torch.where(torch.arange(rows) % 2 == 0, 1.0, -1.0)[:, None]
        size = 1.0 if spread > 1 else torch.rand(rows, width, generator=random, dtype=torch.float64)
        pair = (ref + signs * spread * size, ref)
        return torch.where(inside, pair[0], 0.0).to(dtype), torch.where(inside, pair[1], 0.0).to(dtype)
    logits = spread * torch.randn(2, rows, width, VOCABULARY, generator=random, dtype=torch.float64)
    logits[:, :, :, 0] = -torch.inf
    logits[0, :, ::2, 1] = -torch.inf
    policy, ref = torch.where(inside[:, :, None], logits.log_softmax(dim=-1), 0.0).to(dtype)
    return policy, ref


def _in_both_dtypes(check: Callable[[Kl, Pair], None], selected: Selected[KLType], spread: float = 1.0) -> None:
    in_both_dtypes(partial(check, selected.load()), partial(example, selected, spread=spread))


def _shape_and_dtype(kl: Kl, pair: Pair) -> None:
    terms = kl(*pair)
    expect_shape("the terms", terms, (ROWS, WIDTH), pair[0].dtype)
    expect_finite("the terms", terms)


def _inputs_untouched(kl: Kl, pair: Pair) -> None:
    before = [each.clone() for each in pair]
    kl(*pair)
    for name, now, then in zip(("log_probs", "ref_log_probs"), pair, before, strict=True):
        expect(torch.equal(now, then), f"it modifies its input {name}")


def _deterministic(kl: Kl, pair: Pair) -> None:
    expect(torch.equal(kl(*pair), kl(*pair)), "two calls with the same inputs give different terms")


def _zero_where_the_policies_agree(kl: Kl, pair: Pair) -> None:
    terms = kl(pair[1], pair[1].clone())
    largest = float(terms.abs().max())
    expect(largest <= 1e-6, f"where policy and reference are equal the term is {largest:.3g}, not 0")


def _tokens_independent(kl: Kl, pair: Pair) -> None:
    whole = kl(*pair)
    policy, ref = pair
    alone = torch.stack(
        [kl(policy[:, [column]], ref[:, [column]]).squeeze(1) for column in range(policy.shape[1])], dim=1
    )
    expect_equal("the terms", alone, whole, "with the tokens that stand beside one")
    order = torch.randperm(len(policy), generator=generator(1))
    expect_equal("the terms", kl(policy[order], ref[order]), whole[order], "with the order of the rows")
    each = torch.cat([kl(policy[[row]], ref[[row]]) for row in range(len(policy))])
    expect_equal("the terms", each, whole, "with the rows that stand beside a response")


def _gradient(kl: Kl, pair: Pair) -> Tensor:
    leaf = pair[0].clone().requires_grad_()
    terms = kl(leaf, pair[1])
    expect(terms.requires_grad, "its terms carry no gradient of log_probs")
    (gradient,) = torch.autograd.grad(terms.sum(), leaf)
    return gradient


def _differentiable(kl: Kl, pair: Pair) -> None:
    gradient = _gradient(kl, pair)
    expect_finite("the gradients", gradient)
    expect(gradient.any(), "the gradient of log_probs is 0 everywhere")


def _finite_at_extreme_ratios(kl: Kl, pair: Pair) -> None:
    expect_finite("with log-ratios of ±50 the terms", kl(*pair))
    expect_finite("with log-ratios of ±50 the gradients", _gradient(kl, pair))


def _precision(kl: Kl, pair: Pair) -> None:
    expect_precision(lambda: _gradient(kl, pair), pair[0].dtype)


def _vectorised(selected: Selected[KLType]) -> None:
    kl: Any = selected.load()
    expect_vectorised(lambda rows: partial(kl, *example(selected, torch.float32, rows=rows)), "responses")
    expect_vectorised(lambda width: partial(kl, *example(selected, torch.float32, width=width)), "tokens")


def _same_in_a_fresh_process(selected: Selected[KLType]) -> None:
    """The second of two batches of one shape, as the first call of a fresh process."""
    pair = example(selected, torch.float32, rows=4, width=11)
    expect_the_same_elsewhere(selected, (pair[0].flip(0), pair[1].flip(0) * 0.9), pair)


_CHECKS: dict[str, Callable[[Kl, Pair], None]] = {
    "shape_and_dtype": _shape_and_dtype,
    "inputs_untouched": _inputs_untouched,
    "deterministic": _deterministic,
    "keeps_precision": _precision,
    "zero_where_the_policies_agree": _zero_where_the_policies_agree,
    "tokens_are_independent": _tokens_independent,
    "differentiable": _differentiable,
}
_OVER_THE_VOCABULARY: dict[str, Callable[[Selected[KLType]], None]] = {
    "gradient_matches_differences": gradient_is_of_the_value,
    "mean_is_the_divergence": mean_is_the_divergence,
    "pulls_towards_the_reference": pulls_towards_the_reference,
}
