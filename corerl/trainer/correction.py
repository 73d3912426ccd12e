"""The rollout corrector of a run: a plugin's, or none."""

from torch import Tensor

from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience
from corerl.contracts.losses import Mean
from corerl.contracts.rollout_correctors import Correction, RolloutCorrector
from corerl.contracts.throughput import ModelShape
from corerl.errors import ConfigError
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


def require_corrector(config: TrainConfig, plugins: Plugins) -> None:
    """Refuse a config that needs a corrector if no plugin has one.

    Raises:
        ConfigError: it does, and none has.
    """
    correction = config.algorithm.rollout_correction
    stale = config.trainer.max_staleness > 0 and correction.rollout_is is None
    asked = correction.acts or correction.bypass_mode or correction.max_log_prob_diff is not None
    if (asked or stale) and not plugins.hook.make_rollout_corrector.get_hookimpls():
        raise ConfigError(
            "algorithm.rollout_correction" if asked else "trainer.max_staleness",
            "needs rollout correction: pip install corerl-correction",
        )


def make_corrector(config: TrainConfig, plugins: Plugins, shape: ModelShape) -> RolloutCorrector:
    """That of a plugin; without one, nothing is corrected, and a line is printed."""
    made: RolloutCorrector | None = plugins.hook.make_rollout_corrector(config=config, shape=shape)
    if made is None:
        say("log-probs of engine and trainer are not compared: pip install corerl-correction")
    return made or NoCorrector()
