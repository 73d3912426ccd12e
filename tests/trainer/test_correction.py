"""Without a plugin for rollout correction: nothing is corrected, and a config that needs it is refused."""

from contextlib import nullcontext

import pytest
import torch

from corerl.contracts.config import AlgorithmConfig, ModelConfig, RolloutCorrectionConfig, TrainConfig, TrainerConfig
from corerl.contracts.experience import Experience
from corerl.contracts.throughput import ModelShape
from corerl.errors import ConfigError
from corerl.plugins import Plugins
from corerl.trainer.correction import make_corrector, require_corrector


@pytest.fixture
def without() -> Plugins:
    return Plugins(disable=["corerl-correction"])


@pytest.mark.parametrize(
    ("correction", "staleness", "key"),
    [
        ({}, 0, None),
        ({"rollout_is": "none"}, 2, None),
        ({"rollout_is": "token"}, 0, "algorithm.rollout_correction"),
        ({"rollout_rs": "token_k1"}, 0, "algorithm.rollout_correction"),
        ({"bypass_mode": True}, 0, "algorithm.rollout_correction"),
        ({"max_log_prob_diff": 0.1}, 0, "algorithm.rollout_correction"),
        ({}, 2, "trainer.max_staleness"),
    ],
)
def test_a_config_that_needs_correction_names_the_distribution(without, correction, staleness, key):
    algorithm = AlgorithmConfig(rollout_correction=RolloutCorrectionConfig(**correction))
    config = TrainConfig(ModelConfig("m"), algorithm=algorithm, trainer=TrainerConfig(max_staleness=staleness))
    refused = nullcontext() if key is None else pytest.raises(ConfigError, match=f"^{key}: .*pip install corerl-corr")
    with refused:
        require_corrector(config, without)
    require_corrector(config, Plugins())


def test_without_a_plugin_a_batch_stays_as_it_is_and_a_line_names_the_comparison_that_is_not_made(without, capsys):
    corrector = make_corrector(TrainConfig(ModelConfig("m")), without, ModelShape(1, 1, 1))
    assert "log-probs of engine and trainer are not compared: pip install corerl-correction" in capsys.readouterr().err
    mask = torch.ones(1, 2, dtype=torch.bool)
    batch = Experience(torch.zeros(1, 3), torch.ones(1), torch.tensor([2]), mask, torch.zeros(1))
    batch.old_log_probs, batch.rollout_log_probs = torch.zeros(1, 2), torch.full((1, 2), -3.0)
    correction, measured = corrector.of_batch(batch, 0)
    corrector.apply(correction, batch)
    assert measured == {} and corrector.weights(correction) is None and not corrector.acts_on_mini_batches
    assert batch.rollout_weights is None and batch.response_mask is mask
