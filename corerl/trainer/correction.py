"""The rollout corrector of a run: a plugin's, or none."""

from torch import Tensor

from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.rollout_correctors import Correction, RolloutCorrector
from corerl.contracts.throughput import ModelShape
from corerl.plugins import Plugins
from corerl.terminal.notices import say


class NoCorrector:
    """Measures and changes nothing."""

    acts_on_mini_batches = False

    def of_batch(self, experience: Experience, staleness: int) -> tuple[Correction | None, dict[str, Mean]]:
        return None, {}

    def weights(self, correction: Correction | None) -> Tensor | None:
        return None

    def apply(self, correction: Correction | None, experience: Experience) -> None:
        pass

    def of_mini_batch(self, mini_batch: Experience, present: Tensor) -> dict[str, Mean]:
        return {}


def make_corrector(config: TrainConfig, plugins: Plugins, shape: ModelShape) -> RolloutCorrector:
    """That of a plugin; without one, nothing is corrected, and a line is printed."""
    made: RolloutCorrector | None = plugins.hook.make_rollout_corrector(config=config, shape=shape)
    if made is None:
        say("log-probs of engine and trainer are not compared: pip install corerl-correction")
    return made or NoCorrector()
