"""The entry point: settings that must precede the import of Ray."""

import os

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.runtimes import Runtime
from corerl.contracts.surroundings import leave_launch
from corerl_ray.options import RayOptions


def launch(config: RuntimeConfig, *, options: RayOptions) -> Runtime:
    """Start the runtime.

    Raises:
        ConfigError: the cluster has too few CPUs or GPUs.
        RunError: the cluster cannot be reached.
    """
    leave_launch()
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")  # CoreRL prints the cause
    if options.address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray then stays on 127.0.0.1

    from corerl_ray.runtime import RayRuntime

    return RayRuntime(config, options)
