"""Every mode of rollout correction has the bias that it claims, by enumeration; wrong claims fail."""

import dataclasses
import math

import pytest

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.facts import Claims
from corerl_correction.centering import ScoreCentering
from corerl_correction.claims import MODES
from corerl_correction.corrector import ImportanceCorrector
from corerl_testing.checks import CheckFailed, CheckSkipped
from corerl_testing.enumerable.correction import corrector_checks, of_corrector

SEQUENCE = RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
NORMALISED = dataclasses.replace(SEQUENCE, rollout_is_batch_normalize=True)
BOUNDED = RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=1.2)
CONSTANT = RolloutCorrectionConfig(rollout_is="none")


def terms(config):
    return [ScoreCentering(config, temperature=1.0)] if config.score_centering else []


def changes(config):
    return {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if value != getattr(RolloutCorrectionConfig(), name)
    }


class Claiming(ImportanceCorrector):
    """A corrector with other claims than its own."""

    claims = None


def run(corrector, config):
    for _, check in corrector_checks(corrector, terms(config)):
        check()


@pytest.mark.parametrize("config", MODES, ids=lambda config: str(changes(config)))
def test_every_mode_has_the_bias_that_it_claims(config):
    run(ImportanceCorrector(config), config)


@pytest.mark.parametrize(
    ("config", "claims", "message"),
    [
        (CONSTANT, Claims("unbiased"), "when the samples are those of another policy"),
        (BOUNDED, Claims("unbiased"), "when the samples are those of another policy"),
        (NORMALISED, Claims("unbiased"), "when the samples are those of another policy"),
        (SEQUENCE, Claims("surrogate"), "claim unbiased"),
        (SEQUENCE, Claims("unbiased", factor="1 / n"), "the nearest multiple is 1 times"),
        (CONSTANT, Claims("surrogate", factor="2"), "if engine and trainer agree"),
        (CONSTANT, Claims("baseline-biased"), "a corrector claims unbiased or surrogate"),
    ],
)
def test_a_wrong_claim_fails(monkeypatch, config, claims, message):
    monkeypatch.setattr(Claiming, "claims", claims)
    with pytest.raises(CheckFailed, match=message):
        run(Claiming(config), config)


def test_a_corrector_without_claims_is_skipped():
    with pytest.raises(CheckSkipped, match="it declares no bias"):
        run(Claiming(CONSTANT), CONSTANT)


def test_centering_brings_the_gradient_without_weights_nearer():
    """All tokens are recorded. What is left are the engine's prefixes."""
    without, centered = (
        max(each.error(1.0) for each in of_corrector(ImportanceCorrector(config), terms(config)))
        for config in (CONSTANT, dataclasses.replace(CONSTANT, score_centering=True))
    )
    assert centered < without
