"""Things that plugins make for a run, beside its selected parts."""

from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.plugins import Plugins
from corerl.registry.parts import Parts


def require_makers(config: TrainConfig, parts: Parts, plugins: Plugins) -> None:
    """Refuse a config that needs something that no plugin makes.

    Raises:
        ConfigError: the distribution that makes it is named.
    """
    correction, hook = config.algorithm.rollout_correction, plugins.hook
    asked = correction.acts or correction.bypass_mode or correction.score_centering
    asked = asked or correction.max_log_prob_diff is not None
    stale = config.trainer.max_staleness > 0 and correction.rollout_is is None
    corrector = hook.make_rollout_corrector
    for needed, maker, key, what in (
        (asked, corrector, "algorithm.rollout_correction", "rollout correction: pip install corerl-correction"),
        (stale, corrector, "trainer.max_staleness", "rollout correction: pip install corerl-correction"),
        (parts.kl_penalty, hook.make_kl_penalty, "algorithm.use_kl_in_reward", "penalties: pip install corerl-torch"),
        (config.data.val_files, hook.make_evaluation, "data.val_files", "evaluations: pip install corerl-torch"),
        (True, hook.make_restarts, "trainer.max_restarts", "restarts: pip install corerl-torch"),
    ):
        if needed and not maker.get_hookimpls():
            raise ConfigError(key, f"needs {what}")
