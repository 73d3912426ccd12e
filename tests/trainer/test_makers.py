"""Configs that need something that no plugin makes."""

import re
from types import SimpleNamespace

import pytest

from corerl.contracts.config import AlgorithmConfig, ModelConfig, RolloutCorrectionConfig, TrainConfig, TrainerConfig
from corerl.plugins import Plugins
from corerl.trainer.makers import missing_makers

WITHOUT_PENALTY, WITH_PENALTY = SimpleNamespace(kl_penalty=None), SimpleNamespace(kl_penalty="low_var_kl")


@pytest.mark.parametrize(
    ("correction", "staleness", "key"),
    [
        ({}, 0, None),
        ({"rollout_is": "none"}, 2, None),
        ({"rollout_is": "token"}, 0, "algorithm.rollout_correction"),
        ({"rollout_rs": "token_k1"}, 0, "algorithm.rollout_correction"),
        ({"bypass_mode": True}, 0, "algorithm.rollout_correction"),
        ({"max_log_prob_diff": 0.1}, 0, "algorithm.rollout_correction"),
        ({"score_centering": True}, 0, "algorithm.rollout_correction"),
        ({}, 2, "trainer.max_staleness"),
    ],
)
def test_a_config_that_needs_correction_names_the_distribution(correction, staleness, key):
    algorithm = AlgorithmConfig(rollout_correction=RolloutCorrectionConfig(**correction))
    config = TrainConfig(ModelConfig("m"), algorithm=algorithm, trainer=TrainerConfig(max_staleness=staleness))
    errors = [str(each) for each in missing_makers(config, WITHOUT_PENALTY, Plugins(disable=["corerl-correction"]))]
    assert [each.partition(":")[0] for each in errors] == ([] if key is None else [key])
    assert all("pip install corerl-correction" in each for each in errors)
    assert not list(missing_makers(config, WITHOUT_PENALTY, Plugins()))


@pytest.mark.parametrize(
    ("parts", "files", "key"),
    [
        (WITH_PENALTY, [], "algorithm.use_kl_in_reward"),
        (WITHOUT_PENALTY, ["a"], "data.val_files"),
        (WITHOUT_PENALTY, [], "trainer.max_restarts"),
    ],
)
def test_penalties_evaluations_and_restarts_name_the_distribution_that_makes_them(parts, files, key):
    config = TrainConfig(ModelConfig("m"))
    config.data.val_files = files
    errors = [str(each) for each in missing_makers(config, parts, Plugins(disable=["corerl-torch"]))]
    assert any(re.fullmatch(f"{key}: needs .*: pip install corerl-torch", each) for each in errors)
    assert not list(missing_makers(config, parts, Plugins()))


def test_copies_of_checkpoints_name_the_distribution_that_makes_them():
    config = TrainConfig(ModelConfig("m"), trainer=TrainerConfig(remote_dir="memory://runs"))
    [error] = missing_makers(config, WITHOUT_PENALTY, Plugins(disable=["corerl-tools"]))
    assert str(error) == "trainer.remote_dir: needs copies: pip install corerl-tools"
    assert not list(missing_makers(config, WITHOUT_PENALTY, Plugins()))
