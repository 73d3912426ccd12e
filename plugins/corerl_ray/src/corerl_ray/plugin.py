"""The names registered by corerl-ray."""

import sys
from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.runs import Run
    from corerl.contracts.runtimes import RuntimeFactory


@hookimpl
def register_runtimes(register: "Register[RuntimeFactory]") -> None:
    register(
        "ray",
        "corerl_ray.launch:launch",
        options="corerl_ray.options:RayOptions",
        summary="every worker in a process of its own, on one machine or many (Ray)",
    )


@hookimpl
def run_started(run: "Run") -> None:
    """Send the run's folder to the watcher of a cluster that was started here."""
    cluster = sys.modules.get("corerl_ray.cluster")
    if cluster is not None and cluster.watcher is not None:
        cluster.watcher.send(folder=str(run.folder.absolute()))
