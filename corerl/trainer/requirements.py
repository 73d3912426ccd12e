"""A plugin or an engine that is missing ends a command before it loads anything."""

import torch

from corerl.contracts.checks import Examined, Machine
from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import RolloutBackendFactory
from corerl.contracts.runtimes import LocatedOptions, RuntimeFactory
from corerl.errors import ConfigError, CoreRLError
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.registry.parts import Parts


def require_makers(config: TrainConfig, parts: Parts, plugins: Plugins) -> None:
    """Refuse a config that needs something that no plugin makes.

    Raises:
        ConfigError: the distribution that makes it is named.
    """
    correction, hook = config.algorithm.rollout_correction, plugins.hook
    asked = correction.acts or correction.bypass_mode or correction.max_log_prob_diff is not None
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


def require_engine(
    config: TrainConfig, backend: Selected[RolloutBackendFactory], runtime: Selected[RuntimeFactory]
) -> None:
    """Refuse an engine that is not here, if this machine generates.

    Raises:
        ConfigError: the rollout backend examines the machine and finds an error.
    """
    if not works_here(runtime) or not isinstance(backend.options, Examined):
        return
    for each in backend.options.examine("rollout.name", config, Machine(torch.cuda.device_count())):
        if isinstance(each, CoreRLError):
            raise each
        if each.severity == "error":
            raise ConfigError(each.key, f"{each.sentence}. {each.remedy}")


def works_here(runtime: Selected[RuntimeFactory]) -> bool:
    """Whether all workers live on this machine: those of a runtime without options, or whose options say so."""
    options = runtime.options
    return options.works_here if isinstance(options, LocatedOptions) else options is None
