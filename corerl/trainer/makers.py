"""Things that plugins make for a run, beside its selected parts."""

from collections.abc import Iterator

from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl.plugins import Plugins
from corerl.registry.parts import Parts


def missing_makers(config: TrainConfig, parts: Parts, plugins: Plugins) -> Iterator[ConfigError]:
    """An error for each thing that a config needs and that no plugin makes; it names the distribution."""
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
        (config.trainer.remote_dir, hook.fetch_checkpoint, "trainer.remote_dir", "copies: pip install corerl-tools"),
        (True, hook.make_restarts, "trainer.max_restarts", "restarts: pip install corerl-torch"),
    ):
        if needed and not maker.get_hookimpls() and not plugins.untrusted:
            yield ConfigError(key, f"needs {what}")
