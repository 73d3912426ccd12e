"""Options of runtime ``ray``."""

from dataclasses import dataclass
from typing import Literal

from corerl import option


@dataclass
class RayOptions:
    """``runtime.options``."""

    workers: int | None = option(None, "workers of each role, without GPUs; null: one a node", ge=1)
    rollout_workers: int | None = option(
        None,
        "rollout workers with places of their own, without GPUs; null: the rollout role shares the workers' places",
        ge=1,
    )
    rollout_samples: int = option(
        1024, "samples that a rollout worker has in hand at a time, where several share the requests", ge=1
    )
    address: str | None = option(
        None, "HOST:PORT of a running cluster, or auto; null: one is started on this machine, and ended with the run"
    )
    connect_timeout: float = option(30.0, "seconds until the cluster must have answered", gt=0)
    start_timeout: float = option(600.0, "seconds that starting the workers of a role may take, models included", gt=0)
    timeout: float = option(7200.0, "seconds that a call on the workers may take", gt=0)
    weights_transport: Literal["auto", "object_store", "broadcast", "ipc"] = option(
        "auto", "way of weights to the rollout workers; auto: ipc on shared GPUs, broadcast between pools of GPUs"
    )
    weights_bucket_mb: int = option(512, "MiB of weights that are under way at a time, in two buckets", ge=1)
    environment: list[str] = option(
        help="further environment variables that the workers get from this process", factory=list
    )
