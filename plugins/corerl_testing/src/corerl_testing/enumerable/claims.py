"""Checks that the expected gradient of an entry is as it claims (:class:`corerl.contracts.facts.Claims`).

``unbiased``: an estimator's is the factor times the gradient of the objective, in every game. That of a loss is so at
every policy, whichever policy sampled. The mean of a KL type is the divergence, or its mean gradient the divergence's
gradient, or both.

``baseline-biased``: the factor of an estimator differs from 1. With factor "" the gradient is an ascent direction and
no multiple of the true one, and the advantages grow in proportion with the rewards.

``surrogate``: an estimator's is exact in games with scores of 0 and 1, or, with factor "", an ascent direction; that of
a loss is exact at the policy that sampled. A KL type is 0 if policy and reference agree, else above 0 in the mean.

A claim of less than the truth fails too.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageEstimator, AdvantageInputs, Advantages
from corerl.contracts.facts import Claims
from corerl.contracts.kl_types import KLType
from corerl.contracts.policy_losses import PolicyLoss
from corerl.registry import Selected
from corerl_testing.enumerable.expectation import Sampled, Update, estimated, expected_gradient, sampled
from corerl_testing.enumerable.games import GAMES, Game
from corerl_testing.enumerable.kl import expected_kl
from corerl_testing.enumerable.objectives import Objective, factor, objective, tokens_kl
from corerl_testing.enumerable.points import Point
from corerl_testing.results import CheckSkipped, Run
from corerl_testing.tensors import expect

EXACT = 1e-10
"""largest difference of an exact gradient from the true one, relative"""

EPSILON = 1e-5
"""the same of a surrogate, whose normalisation has an epsilon"""

BIASED = 1e-6
"""smallest difference of a biased one in some game"""

FEW = 10
"""episodes of a game whose groups of three are enumerated too"""

OFF_POLICY = 0.4
"""distance of the trained policy from the one that sampled, in logits"""

DEFAULT = Update()

LOSS_MODES = ("seq-mean-token-sum", "seq-mean-token-mean")
"""aggregations with one of which the gradient of a loss must be exact"""


@dataclass(frozen=True)
class Comparison:
    """An expected gradient beside the true one.

    Attributes:
        where: game and size of the group, for messages.
    """

    where: str
    n: int
    binary: bool
    found: Tensor
    true: Tensor

    @property
    def factor(self) -> float:
        """The multiple of the true gradient that is nearest."""
        return float((self.found * self.true).sum() / self.true.square().sum())

    def error(self, factor: float | None = None) -> float:
        """The distance from ``factor`` times the true gradient, relative to this; None: the nearest multiple."""
        nearest = self.factor if factor is None else factor
        return float((self.found - nearest * self.true).norm() / max(1e-300, abs(nearest) * float(self.true.norm())))

    @property
    def cosine(self) -> float:
        """Of the angle between the two."""
        return float((self.found * self.true).sum() / self.found.norm() / self.true.norm())


@functools.cache
def settings(sizes: tuple[int, ...] = (2, 3)) -> list[Sampled]:
    """Every game with the groups of these sizes that are few enough."""
    sized = [(game, n) for game in GAMES for n in sizes if n < 3 or len(game.paths) <= FEW]
    return [sampled(Point.of(game), n) for game, n in sized]


def true_gradient(of: Objective, point: Point, n: int) -> Tensor:
    """(states, vocabulary)."""
    leaf = point.leaf()
    (gradient,) = torch.autograd.grad(of.value(leaf, n), leaf.logits)
    return gradient


def of_estimator(estimator: AdvantageEstimator, of: Objective, update: Update = DEFAULT) -> Iterator[Comparison]:
    """An estimator beside the gradient of an objective, in each game that defines the objective."""
    for each in settings():
        if each.game.binary or not of.binary:
            n = each.members.shape[1]
            found = expected_gradient(estimated(each, estimator, update.corrector), update)
            where = f"in the game '{each.game.name}' with groups of {n}"
            yield Comparison(where, n, each.game.binary, found, true_gradient(of, each.old, n))


def of_loss(
    loss: PolicyLoss, select_tokens: Any, of: Objective, *, mode: str = LOSS_MODES[0], off_policy: float = 0.0
) -> Iterator[Comparison]:
    """A loss with advantages of s - 1 beside the gradient of an objective of the trained policy."""
    update = Update(loss, select_tokens, mode, of_logits=of.of_logits, columns=of.columns)
    for each in settings((1,) if select_tokens is None else (2,)):
        if each.game.binary:
            continue
        n, point = each.members.shape[1], each.old.moved(off_policy) if off_policy else each.old
        found = expected_gradient(estimated(each, _shifted_scores), update, point)
        yield Comparison(f"in the game '{each.game.name}'", n, False, found, true_gradient(of, point, n))


def _shifted_scores(inputs: AdvantageInputs) -> Advantages:
    scores = inputs.rewards.sum(dim=1, keepdim=True) - 1
    advantages = torch.where(inputs.response_mask, scores, 0.0)
    return Advantages(advantages, advantages)


def estimator_checks(selected: Selected[AdvantageEstimator]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    yield "claims", partial(_check_estimator, selected)


def loss_checks(selected: Selected[PolicyLoss]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    yield "claims", partial(_check_loss, selected)


def kl_checks(selected: Selected[KLType]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    yield "claims", partial(_check_kl, selected)


def claims_of(selected: Selected[Any]) -> Claims:
    """The claims of an entry.

    Raises:
        CheckSkipped: it makes none.
    """
    claims: Claims | None = selected.entry.facts.claims
    if claims is None:
        raise CheckSkipped('it declares no bias of its expected gradient, such as claims=Claims("unbiased")')
    expect(isinstance(claims, Claims), f"its claims must be corerl.contracts.facts.Claims, not {claims!r}")
    known = ("unbiased", "baseline-biased", "surrogate")
    expect(claims.bias in known, f"it claims '{claims.bias}'; known: {', '.join(known)}")
    return claims


def _check_estimator(selected: Selected[AdvantageEstimator]) -> None:
    claims, estimator = claims_of(selected), selected.load()
    compared = list(of_estimator(estimator, objective(claims.of)))
    if not claims.factor:
        expect(claims.bias != "unbiased", "it claims unbiased without a factor: claim baseline-biased or surrogate")
        _expect_ascent(compared, claims)
        expect_bias(compared, claims)
        if claims.bias == "baseline-biased":
            _expect_proportion(estimator)
        return
    if claims.bias == "baseline-biased":
        expect(factor(claims.factor, 3) != 1, "it claims baseline-biased with the factor 1, which is unbiased")
    if claims.bias == "surrogate":
        expect_exact([each for each in compared if each.binary], claims, EPSILON)
        others = [each for each in compared if not each.binary]
        if others:
            expect_bias(others, claims)
    else:
        expect_exact(compared, claims, EXACT)


def _check_loss(selected: Selected[PolicyLoss]) -> None:
    claims = claims_of(selected)
    expect(claims.bias != "baseline-biased", "a policy loss has no baseline: claim unbiased or surrogate")
    of = objective(claims.of, selected.options)
    compare = partial(of_loss, selected.load(), selected.load_fact("select_tokens"), of)
    if not claims.factor:
        compared = list(compare())
        _expect_ascent(compared, claims)
        expect_bias(compared, claims)
        return
    mode = _exact_mode(compare, claims)
    moved = list(compare(mode=mode, off_policy=OFF_POLICY))
    if claims.bias == "unbiased":
        expect_exact(moved, claims, EXACT, ", when the samples are those of another policy")
    else:
        expect_bias(moved, claims)


def _exact_mode(compare: Callable[..., Iterator[Comparison]], claims: Claims) -> str:
    """The aggregation with which a loss is exact on-policy, of several the first."""
    by_mode = {mode: list(compare(mode=mode)) for mode in LOSS_MODES}
    mode = min(by_mode, key=lambda each: max(one.error(factor(claims.factor, one.n)) for one in by_mode[each]) > EXACT)
    expect_exact(by_mode[mode], claims, EXACT, ", at the policy that sampled")
    return mode


def _check_kl(selected: Selected[KLType]) -> None:
    claims = claims_of(selected)
    found = {"value": 0.0, "gradient": 0.0}
    for point in (Point.of(game) for game in GAMES[:2]):
        value, gradient = expected_kl(selected, point)
        leaf = point.leaf()
        true = tokens_kl(leaf)
        (slope,) = torch.autograd.grad(true, leaf.logits)
        found["value"] = max(found["value"], abs(float(value) / float(true.detach()) - 1))
        found["gradient"] = max(found["gradient"], float((gradient - slope).norm() / slope.norm()))
        if claims.bias == "surrogate":
            _expect_distance(selected, point, float(value))
    exact = " and ".join(name for name, error in found.items() if error <= EXACT)
    claimed = claims.of.removeprefix("KL ") if claims.bias == "unbiased" else ""
    expect(
        claimed == exact,
        f"it claims {f'an unbiased {claims.of}' if claimed else 'a bias'}; by enumeration its mean differs by "
        f"{found['value']:.2g} and its mean gradient by {found['gradient']:.2g} (relative) from KL(pi || pi_ref)",
    )


def _expect_distance(selected: Selected[KLType], point: Point, value: float) -> None:
    expect(value > 0, f"its mean is {value:.3g}, where policy and reference differ")
    same, _ = expected_kl(selected, replace(point, ref_logits=point.logits))
    expect(abs(float(same)) <= EXACT, f"its mean is {float(same):.3g}, where policy and reference agree")


def expect_exact(compared: list[Comparison], claims: Claims, tolerance: float, when: str = "") -> None:
    """
    Raises:
        CheckFailed: a gradient is not the claimed multiple of the true one.
    """
    for each in compared:
        claimed = factor(claims.factor, each.n)
        error = each.error(claimed)
        expect(
            error <= tolerance,
            f"it claims to be {claims}, but {each.where} its expected gradient differs by {error:.2g} (relative) from "
            f"{claimed:.6g} times the true one{when}: the nearest multiple is {each.factor:.6g} times, with a rest of "
            f"{each.error():.2g}",
        )


def _expect_ascent(compared: list[Comparison], claims: Claims) -> None:
    for each in compared:
        cosine = each.cosine
        expect(
            cosine > 0,
            f"it claims to be {claims}, but {each.where} its expected gradient leads down: cosine {cosine:.3g}",
        )


def expect_bias(compared: list[Comparison], claims: Claims) -> None:
    """
    Raises:
        CheckFailed: all gradients are the same multiple of the true one.
    """
    factors = {each.n: each.factor for each in compared}
    worst = max(each.error(factors[each.n]) for each in compared)
    words = ", ".join(f"{value:.6g} (n = {n})" for n, value in factors.items())
    expect(
        worst > BIASED,
        f"it claims to be {claims}, but in every game its expected gradient is that of the objective, times {words}: "
        "claim unbiased, or this factor",
    )


def _expect_proportion(estimator: AdvantageEstimator) -> None:
    """Twice the rewards give twice the advantages, as a baseline does and a division by a deviation does not."""
    game: Game = GAMES[0]
    double = replace(game, score=lambda tokens: 2 * game.score(tokens))
    once, twice = (estimated(sampled(Point.of(each), 3), _without_values(estimator)) for each in (game, double))
    difference = float((twice.advantages - 2 * once.advantages).abs().max())
    expect(
        difference <= 1e-9,
        f"it claims baseline-biased, but with twice the rewards its advantages are not twice as large (by "
        f"{difference:.2g}): it divides by more than a baseline explains, claim surrogate",
    )


def _without_values(estimator: AdvantageEstimator) -> AdvantageEstimator:
    """The estimator with values of the critic and a greedy score of 0."""

    def estimate(inputs: AdvantageInputs) -> Advantages:
        values = None if inputs.values is None else torch.zeros_like(inputs.values)
        greedy = None if inputs.greedy_scores is None else torch.zeros_like(inputs.greedy_scores)
        return estimator(replace(inputs, values=values, greedy_scores=greedy))

    return estimate
