"""Every combination of an estimator, a policy loss and an aggregation, in a game with turns and a stop."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.registry import Registries, Selected
from corerl_testing.entries import required_options
from corerl_testing.enumerable.claims import EXACT, LOSS_MODES, Comparison, of_loss, true_gradient
from corerl_testing.enumerable.expectation import SCALE_FACTOR, Estimated, Update, estimated, expected_gradient, sampled
from corerl_testing.enumerable.games import GAMES
from corerl_testing.enumerable.objectives import factor, objective
from corerl_testing.enumerable.points import Point
from corerl_testing.invariance import AGGREGATIONS
from corerl_testing.tensors import expect

GAME = next(game for game in GAMES if game.name == "turns")
SIZE = 2
SUMS = {"seq-mean-token-sum": 1.0, "token-sum": float(SIZE), "seq-mean-token-sum-norm": 1 / SCALE_FACTOR}
"""aggregation without a bias -> its factor"""

LENGTH_BIAS = 1e-3
"""smallest rest of an unbiased estimator with an aggregation that divides by lengths"""


@dataclass(frozen=True)
class Combination:
    """The expected gradient of a combination, beside that of the estimator with -A log pi and the exact one."""

    estimator: Selected[Any]
    loss: Selected[Any]
    mode: str
    found: Tensor
    plain: Tensor
    exact: Tensor

    def check(self) -> None:
        """
        Raises:
            CheckFailed: the claims of estimator and loss do not hold together.
        """
        where = f"{self.estimator.entry.name} with {self.loss.entry.name} and {self.mode}"
        beside = Comparison(where, SIZE, False, self.found, self.plain)
        expect(
            beside.error(1.0) <= EXACT,
            f"{where}: the loss claims the policy gradient where it sampled, but the expected gradient differs "
            f"by {beside.error(1.0):.2g} (relative) from that of -A log pi",
        )
        claims = self.estimator.entry.facts.claims
        if claims is not None and claims.bias == "unbiased" and claims.of == "expected score":
            true = Comparison(where, SIZE, False, self.found, self.exact)
            if self.mode in SUMS:
                error = true.error(SUMS[self.mode] * factor(claims.factor, SIZE))
                expect(error <= EXACT, f"{where}: the expected gradient differs by {error:.2g} (relative)")
            else:
                expect(true.error() > LENGTH_BIAS, f"{where}: it is exact, and {self.mode} divides by lengths")


def combinations(registries: Registries) -> Iterator[Combination]:
    """Every estimator, with every loss that has the policy gradient where it samples, and every aggregation.

    If advantages of a response's tokens differ, losses that do not take them (:func:`takes_tokens`) are left out.
    """
    groups = sampled(Point.of(GAME), SIZE)
    exact = true_gradient(objective("expected score"), groups.old, SIZE)
    losses = policy_gradients(registries)
    of_tokens = [loss for loss in losses if takes_tokens(loss)]
    for estimator in _selected(registries.advantage_estimators):
        found = estimated(groups, estimator.load())
        for mode in AGGREGATIONS:
            plain = expected_gradient(found, Update(mode=mode))
            for loss in of_tokens if _differ(found) else losses:
                yield Combination(estimator, loss, mode, _gradient(found, loss, mode), plain, exact)


def policy_gradients(registries: Registries) -> list[Selected[Any]]:
    """The losses that claim, and have, the policy gradient where they sample, if the aggregation adds up tokens."""
    return [loss for loss in _selected(registries.policy_losses) if _is_policy_gradient(loss)]


def takes_tokens(loss: Selected[Any]) -> bool:
    """The gradient of each token is its own advantage's, not the mean of those of the response."""
    groups = sampled(Point.of(GAME), 1)
    found = estimated(groups, _of_columns)
    mine, wanted = _gradient(found, loss, LOSS_MODES[0]), expected_gradient(found, Update())
    return Comparison("", 1, False, mine, wanted).error(1.0) <= EXACT


def _of_columns(inputs: AdvantageInputs) -> Advantages:
    """An advantage of its own for each column."""
    advantages = torch.where(inputs.response_mask, 1.0 + torch.arange(inputs.rewards.shape[1]).double(), 0.0)
    return Advantages(advantages, advantages)


def _differ(found: Estimated) -> bool:
    """Advantages of the tokens of some response differ."""
    least, largest = (
        torch.where(found.mask, found.advantages, sign * torch.inf).mul(sign).amin(dim=1).mul(sign) for sign in (1, -1)
    )
    return bool((largest - least > 1e-9).any())


def _selected(registry: Any) -> Iterator[Selected[Any]]:
    """Entries with claims and defaults of all options."""
    for entry in registry:
        if entry.facts.claims is not None and not required_options(entry):
            yield registry.with_options(entry, {}, entry.name)


def _gradient(found: Estimated, loss: Selected[Any], mode: str) -> Tensor:
    return expected_gradient(found, Update(loss.load(), loss.load_fact("select_tokens"), mode))


def _is_policy_gradient(loss: Selected[Any]) -> bool:
    claims = loss.entry.facts.claims
    if claims.of != "expected score" or claims.factor != "1":
        return False
    compared = of_loss(loss.load(), loss.load_fact("select_tokens"), objective(claims.of), mode=LOSS_MODES[0])
    return all(each.error(1.0) <= EXACT for each in compared)
