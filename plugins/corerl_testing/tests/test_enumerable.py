"""The enumerable kit against sums over ordered groups, finite differences and formulas."""

import itertools
import math

import pytest
import torch

from corerl.contracts.advantage_estimators import Advantages
from corerl.contracts.facts import Claims
from corerl.plugins import load_plugins
from corerl_testing.enumerable import (
    GAMES,
    OBJECTIVES,
    Game,
    Point,
    Reply,
    Update,
    estimated,
    expected_gradient,
    sampled,
)
from corerl_testing.enumerable.claims import true_gradient
from corerl_testing.enumerable.expectation import Batches
from corerl_testing.enumerable.games import groups
from corerl_testing.enumerable.objectives import factor, objective
from corerl_testing.results import CheckFailed

BY_NAME = {game.name: game for game in GAMES}
every_game = pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
COIN = Game("coin", lambda state, token: [Reply(1.0, -1)], 1, 2, binary=True, score=lambda tokens: float(tokens[0]))
"""one token; token 1 is right"""


def leave_one_out(inputs):
    scores = inputs.rewards.sum(dim=1, keepdim=True)
    same = (inputs.group_ids[:, None] == inputs.group_ids).to(scores.dtype)
    count = same.sum(dim=1, keepdim=True)
    advantages = torch.where(inputs.response_mask, (count * scores - same @ scores) / (count - 1), 0.0)
    return Advantages(advantages, advantages)


def of_the_batch(inputs):
    """An estimator of the whole batch: scores over their largest size."""
    scores = inputs.rewards.sum(dim=1, keepdim=True)
    advantages = torch.where(inputs.response_mask, scores / scores.abs().max(), 0.0)
    return Advantages(advantages, advantages)


@every_game
def test_the_probabilities_of_all_episodes_and_of_all_groups_add_up_to_1(game):
    point = Point.of(game)
    assert math.isclose(float(point.probabilities.sum()), 1.0, abs_tol=1e-14)
    assert math.isclose(float(sampled(point, 2).chances.sum()), 1.0, abs_tol=1e-14)


@every_game
def test_scores_are_the_rewards_and_binary_ones_are_0_and_1(game):
    assert not game.turns or bool((game.turn_rewards.sum(dim=1) != 0).any())
    if game.binary:
        assert set(game.scores.tolist()) == {0.0, 1.0}
    rewarded = game.rewards != 0
    assert not (rewarded & ~game.mask).any()


def test_groups_are_all_multisets_with_the_number_of_their_orders():
    members, orders = groups(4, 3)
    assert len(members) == 20 and float(orders.sum()) == 4**3
    assert dict(zip(map(tuple, members.tolist()), orders.tolist(), strict=True))[(0, 0, 1)] == 3


@pytest.mark.parametrize("estimator", [leave_one_out, of_the_batch])
def test_the_expectation_is_the_sum_over_ordered_groups(estimator):
    point = Point.of(BY_NAME["stop"])
    found = expected_gradient(estimated(sampled(point, 2), estimator), Update())
    leaf = point.leaf()
    probabilities, log_probs = leaf.probabilities.detach(), leaf.log_probs.sum(dim=1)
    loss = torch.zeros((), dtype=torch.float64)
    for pair in itertools.product(range(7), repeat=2):
        advantages = Batches(point.game, point, point)(torch.tensor(pair)).estimate(estimator)[:, 0]
        terms = sum(advantages[place] * log_probs[episode] for place, episode in enumerate(pair))
        loss = loss + probabilities[pair[0]] * probabilities[pair[1]] * terms / 2
    (wanted,) = torch.autograd.grad(loss, leaf.logits)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)


@every_game
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_of_objectives_are_their_differences(game, name):
    of = objective(name)
    if (of.binary and not game.binary) or name.startswith("minus"):  # its prefixes are held
        return
    point = Point.of(game)
    gradient, step = true_gradient(of, point, 3), 1e-5
    moved = torch.randn(point.logits.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ahead, behind = (of.value(Point(game, point.logits + sign * step * moved, point.ref_logits), 3) for sign in (1, -1))
    assert math.isclose(float((gradient * moved).sum()), float(ahead - behind) / 2 / step, rel_tol=1e-6, abs_tol=1e-9)


def test_objectives_of_a_coin_by_hand():
    """p = 1/4, groups of 3."""
    point = Point(COIN, torch.tensor([[3.0, 1.0]]).double().log(), torch.zeros(1, 2).double())
    values = {name: float(OBJECTIVES[name].value(point, 3)) for name in OBJECTIVES}
    assert values["expected score"] == pytest.approx(1 / 4)
    assert values["best score of the group"] == pytest.approx(1 - (3 / 4) ** 3)
    assert values["log success rate to order n - 1"] == pytest.approx(-(3 / 4) - (3 / 4) ** 2 / 2)
    # slope 3 (1-p) 2/9 / sigma + 3 p 2/9 / sigma, sigma = sqrt(1/3): a constant
    assert values["success rate over its deviation"] == pytest.approx(1 / 4 * 2 / 3 * math.sqrt(3), rel=1e-5)
    assert values["minus the KL to the teacher"] == pytest.approx(-(3 / 4) * math.log(3 / 2) - 1 / 4 * math.log(1 / 2))


@pytest.mark.parametrize(("formula", "value"), [("1", 1), ("(n - 1) / n", 2 / 3), ("1 / n ** 0.5", 3**-0.5)])
def test_factors_are_formulas_in_n(formula, value):
    assert factor(formula, 3) == pytest.approx(value)


@pytest.mark.parametrize("formula", ["n +", "m", "__import__('os')", "n.real", "[n]"])
def test_no_other_formula_is_a_factor(formula):
    with pytest.raises(CheckFailed, match="its claimed factor"):
        factor(formula, 3)


def test_an_entry_without_claims_is_skipped(outcomes):
    result = outcomes("advantage_estimators", leave_one_out, only="claims")["claims"]
    assert result.status == "skipped" and 'such as claims=Claims("unbiased")' in result.reason


OWN = OBJECTIVES["expected score"]


def test_a_plugin_may_bring_its_own_objective(outcomes):
    claims = Claims("unbiased", f"{__name__}:OWN")
    result = outcomes("advantage_estimators", leave_one_out, only="claims", claims=claims)["claims"]
    assert (result.status, result.reason) == ("ok", "")


def mutants():
    """Registered estimators that claim to be exact, with their advantages changed."""
    registry = load_plugins().registries.advantage_estimators
    for name in ("rloo", "remax", "dr_grpo", "maxrl", "grpo", "turn_returns", "turn_rloo"):
        if name in registry:
            entry = registry.get(name)
            for words, change in CHANGES.items():
                yield pytest.param(entry, change, id=f"{name}-{words}")


def _scaled(estimated, inputs):
    return 1.01 * estimated


def _without_baseline(estimated, inputs):
    return torch.where(inputs.response_mask, inputs.rewards.sum(dim=1, keepdim=True), 0.0)


def _of_the_token_before(estimated, inputs):
    return torch.where(inputs.response_mask, torch.roll(estimated, 1, dims=1), 0.0)


def _of_positive_scores(estimated, inputs):
    return estimated.clamp(min=0)


CHANGES = {
    "times 1.01": _scaled,
    "without its baseline": _without_baseline,
    "one token late": _of_the_token_before,
    "of what is good alone": _of_positive_scores,
}
STILL_EXACT = {("rloo", "_without_baseline"), ("remax", "_without_baseline"), ("turn_returns", "_without_baseline")}
STILL_EXACT |= {("turn_rloo", "_without_baseline")}
"""a baseline of others changes the variance alone"""


@pytest.mark.parametrize(("entry", "change"), list(mutants()))
def test_a_changed_estimator_fails_its_claims(outcomes, entry, change):
    registry = load_plugins().registries.advantage_estimators
    right = registry.with_options(entry, {}, entry.name).load()

    def wrong(inputs):
        found = change(right(inputs).advantages, inputs)
        return Advantages(found, found)

    result = outcomes("advantage_estimators", wrong, only="claims", claims=entry.facts.claims, needs=entry.needs)
    exact = (entry.name, change.__name__) in STILL_EXACT
    assert result["claims"].status == ("ok" if exact else "failed"), result["claims"].reason
