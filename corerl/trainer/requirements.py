"""An engine that is missing on this machine ends a command before it loads anything."""

import torch

from corerl.contracts.checks import Examined, Machine
from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import RolloutBackendFactory
from corerl.contracts.runtimes import LocatedOptions, RuntimeFactory
from corerl.errors import ConfigError, CoreRLError
from corerl.registry import Selected


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
