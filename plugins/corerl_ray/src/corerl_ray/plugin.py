"""The names registered by corerl-ray."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.runs import Run
    from corerl.contracts.runtimes import Runtime, RuntimeFactory


@hookimpl
def register_runtimes(register: "Register[RuntimeFactory]") -> None:
    register(
        "ray",
        "corerl_ray.launch:launch",
        options="corerl_ray.options:RayOptions",
        summary="every worker in a process of its own, on one machine or many (Ray)",
    )


@hookimpl
def make_batch(
    plan: Any, runtime: "Runtime", folder: Path, models: Any, corrector: Any, annotators: Sequence[Any]
) -> Any | None:
    if not plan.config.rollout.num_workers:
        return None
    from corerl_ray.batch import make_batch

    return make_batch(plan, runtime, folder, models, corrector, annotators)


@hookimpl
def run_started(run: "Run") -> None:
    """Send the run's folder to the watcher of a cluster that was started here."""
    cluster = sys.modules.get("corerl_ray.cluster")
    if cluster is not None and cluster.watcher is not None:
        cluster.watcher.send(folder=str(run.folder.absolute()))
