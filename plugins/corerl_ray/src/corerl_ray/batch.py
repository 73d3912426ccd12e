"""The rows of each step in a process of their own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corerl.contracts.runtimes import Role, Runtime
from corerl.terminal import say
from corerl_ray.runtime import RayRuntime
from corerl_torch.shards.readers import readers_of_tokens
from corerl_torch.shards.worker import BatchWorker


def make_batch(
    plan: Any, runtime: Runtime, folder: Path, models: Any, corrector: Any, annotators: Sequence[Any]
) -> BatchWorker | None:
    """The batch of a run under this runtime with ``rollout.num_workers``; None: the controller has the rows."""
    if not isinstance(runtime, RayRuntime):
        return None
    readers = readers_of_tokens(plan.parts, corrector, annotators)
    if readers:
        say(f"the controller holds the tokens of each step: {', '.join(readers)}")
        return None
    role = Role("batch", "rollout.num_workers", "batch", distributed=False, workers=1)
    return runtime.spawn(role, BatchWorker, plan.config, folder, models.shape)
