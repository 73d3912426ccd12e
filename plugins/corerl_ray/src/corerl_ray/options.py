"""Options of runtime ``ray``."""

from dataclasses import dataclass

from corerl import option


@dataclass
class RayOptions:
    """``runtime.options``."""

    workers: int | None = option(None, "workers of each role, without GPUs; null: one a node", ge=1)
    address: str | None = option(
        None, "HOST:PORT of a running cluster, or auto; null: one is started on this machine, and ended with the run"
    )
    connect_timeout: float = option(30.0, "seconds until the cluster must have answered", gt=0)
    start_timeout: float = option(600.0, "seconds that starting the workers of a role may take, models included", gt=0)
    timeout: float = option(7200.0, "seconds that a call on the workers may take", gt=0)
    weights_bucket_mb: int = option(256, "MiB of weights that are sent in one piece", ge=1)
    environment: list[str] = option(
        help="further environment variables that the workers get from this process", factory=list
    )
