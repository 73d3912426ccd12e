"""Without a plugin for rollout correction, nothing is corrected."""

import torch

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.contracts.experience import Experience
from corerl.contracts.throughput import ModelShape
from corerl.plugins import Plugins
from corerl.trainer.batch import make_corrector


def test_without_a_plugin_a_batch_stays_as_it_is_and_a_line_names_the_comparison_that_is_not_made(capsys):
    without = Plugins(disable=["corerl-correction"])
    corrector = make_corrector(TrainConfig(ModelConfig("m")), without.hook, ModelShape(1, 1, 1))
    assert "log-probs of engine and trainer are not compared: pip install corerl-correction" in capsys.readouterr().err
    mask = torch.ones(1, 2, dtype=torch.bool)
    batch = Experience(torch.zeros(1, 3), torch.ones(1), torch.tensor([2]), mask, torch.zeros(1))
    batch.old_log_probs, batch.rollout_log_probs = torch.zeros(1, 2), torch.full((1, 2), -3.0)
    correction, measured = corrector.of_batch(batch, 0)
    corrector.apply(correction, batch)
    assert measured == {} and corrector.weights(correction) is None and not corrector.acts_on_mini_batches
    assert batch.rollout_weights is None and batch.response_mask is mask
