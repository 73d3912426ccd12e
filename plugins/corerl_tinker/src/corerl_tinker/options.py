"""Options of ``corerl serve --tinker``."""

from dataclasses import dataclass

from corerl import option


@dataclass
class TinkerOptions:
    """Options of the service, given as ``tinker.NAME=VALUE``."""

    folder: str = option("runs/tinker", "folder of saved weights")
    max_length: int | None = option(None, "tokens of a sequence; null: those of the model's config", ge=2)
    max_models: int = option(16, "largest number of models that are trained at a time", ge=1)
    keep_samplers: int = option(8, "unnamed sampling weights of a model in memory; older ones are dropped", ge=1)
    max_pending: int = option(4096, "requests of a session that wait; further ones are refused for a while", ge=1)
    session_timeout: float = option(120.0, "seconds without a heartbeat after which a session's models are freed", gt=0)
    order_timeout: float = option(120.0, "seconds that a request waits for an earlier one that has not come", gt=0)
    poll_timeout: float = option(30.0, "seconds after which a client that waits for a result asks again", gt=0, le=40)
    stop_timeout: float = option(20.0, "seconds that the computation under way has at the end of the server", gt=0)
