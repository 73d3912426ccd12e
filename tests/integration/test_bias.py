"""Claims of all registered estimators, losses and KL types; their combinations; corrections; the page about them."""

import os

import pytest
import torch

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.plugins import load_plugins
from corerl_testing.enumerable import GAMES, Point, Update, estimated, expected_gradient, sampled
from corerl_testing.enumerable.claims import of_estimator, true_gradient
from corerl_testing.enumerable.combinations import combinations, policy_gradients, takes_tokens
from corerl_testing.enumerable.correction import of_corrector
from corerl_testing.enumerable.objectives import Objective, best_score, objective
from scripts.pages.bias import PAGE, render

pytest.importorskip("corerl_grpo")
pytest.importorskip("corerl_ppo")
correction = pytest.importorskip("corerl_correction.corrector")

REGISTRIES = load_plugins((), ()).registries
SCORE = objective("expected score")


def estimator(name, **options):
    return REGISTRIES.advantage_estimators.select({"name": name, **options}, "here").load()


@pytest.mark.parametrize("kind", ["advantage_estimators", "policy_losses", "kl_types"])
def test_every_entry_of_corerl_declares_its_bias(kind):
    entries = [entry for entry in getattr(REGISTRIES, kind) if entry.owner.distribution.startswith("corerl-")]
    assert entries and [entry.name for entry in entries if entry.facts.claims is None] == []


def test_claims_hold_in_every_combination_of_estimator_loss_and_aggregation():
    count = 0
    for each in combinations(REGISTRIES):
        each.check()
        count += 1
    assert count >= 1000


def test_losses_with_one_ratio_for_a_response_need_one_advantage_for_it():
    mixing = {loss.entry.name for loss in policy_gradients(REGISTRIES) if not takes_tokens(loss)}
    assert {"gmpo", "geo_mean"} <= mixing and mixing.isdisjoint({"vanilla", "gspo", "cispo", "reinforce"})


@pytest.mark.parametrize("name", ["rloo", "remax", "turn_returns", "turn_rloo"])
def test_untruncated_sequence_weights_remove_the_bias_of_another_sampler(name):
    for each in mismatched(estimator(name), rollout_is="sequence", rollout_is_threshold=1e6):
        assert each.error(1.0) < 1e-6, each.where  # weights are float32
    for each in mismatched(estimator(name), rollout_is="none"):
        assert each.error() > 0.01, each.where


def test_token_weights_leave_a_bias():
    assert all(0.001 < each.error() < 0.5 for each in mismatched(estimator("rloo"), rollout_is="token"))


def mismatched(chosen, **config):
    """Games whose samples are those of another policy than the trainer's, corrected."""
    return of_corrector(correction.ImportanceCorrector(RolloutCorrectionConfig(**config)), estimator=chosen)


@pytest.mark.parametrize(
    ("name", "options", "of", "exact"),
    [
        ("grpo_passk", {"norm_adv_by_std_in_grpo": False}, Objective(best_score), lambda n: 1 / n),
        ("turn_rloo", {"anchor": "turn"}, SCORE, lambda n: 1.0),
        ("turn_gae", {"whiten": False}, SCORE, lambda n: 1.0),
        ("grpo", {"norm_adv_by_std_in_grpo": False}, SCORE, lambda n: (n - 1) / n),
    ],
)
def test_options_without_normalisation_are_exact(name, options, of, exact):
    assert all(each.error(exact(each.n)) < 1e-10 for each in of_estimator(estimator(name, **options), of))


def test_of_two_baselines_of_a_turn_the_natural_one_is_biased():
    natural, left_out = (
        {each.where: each.error() for each in of_estimator(estimator(name), SCORE) if "turns" in each.where}
        for name in ("turn_grpo", "turn_rloo")
    )
    assert min(natural.values()) > 1e-3 and max(natural.values()) > 0.3
    assert max(left_out.values()) < 1e-14


def test_the_natural_baseline_teaches_later_turns_less():
    """Of two episodes both have a first turn: its factor is 1/2. Fewer have a second turn: its factor is smaller."""
    game = next(game for game in GAMES if game.name == "turns")
    groups = sampled(Point.of(game), 2)
    found = expected_gradient(estimated(groups, estimator("turn_grpo")), Update())
    true = true_gradient(SCORE, groups.old, 2)
    reach = 1 - float(torch.softmax(game.logits(0)[0], dim=0)[2])  # the policy does not stop in the first state
    torch.testing.assert_close(found[0], 0.5 * true[0])
    torch.testing.assert_close(found[1:], 0.5 * reach * true[1:])


@pytest.mark.skipif("CORERL_EVERY_COMBINATION" not in os.environ, reason="20 s: set CORERL_EVERY_COMBINATION=1")
def test_the_page_is_that_of_the_code():
    assert PAGE.read_text() == render(PAGE.read_text()), "run make pages"
