"""The rollout corrector of a run: a plugin's, or none."""

from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_correctors import RolloutCorrector
from corerl.contracts.throughput import ModelShape
from corerl.plugins import Plugins
from corerl.terminal.notices import say


class NoCorrector(RolloutCorrector):
    """Measures and changes nothing, as the contract does."""


def make_corrector(config: TrainConfig, plugins: Plugins, shape: ModelShape) -> RolloutCorrector:
    """That of a plugin; without one, nothing is corrected, and a line is printed."""
    made: RolloutCorrector | None = plugins.hook.make_rollout_corrector(config=config, shape=shape)
    if made is None:
        say("log-probs of engine and trainer are not compared: pip install corerl-correction")
    return made or NoCorrector()
