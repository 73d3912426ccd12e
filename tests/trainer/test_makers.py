"""Configs that need something that no plugin makes."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from corerl.contracts.config import AlgorithmConfig, ModelConfig, RolloutCorrectionConfig, TrainConfig, TrainerConfig
from corerl.errors import ConfigError
from corerl.plugins import Plugins
from corerl.trainer.makers import require_makers

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
    refused = nullcontext() if key is None else pytest.raises(ConfigError, match=f"^{key}: .*pip install corerl-corr")
    with refused:
        require_makers(config, WITHOUT_PENALTY, Plugins(disable=["corerl-correction"]))
    require_makers(config, WITHOUT_PENALTY, Plugins())


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
    with pytest.raises(ConfigError, match=f"^{key}: needs .*: pip install corerl-torch$"):
        require_makers(config, parts, Plugins(disable=["corerl-torch"]))
    require_makers(config, parts, Plugins())
