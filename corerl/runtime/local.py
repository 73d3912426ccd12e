"""Runtime ``local``: every role is one worker in this process."""

from collections.abc import Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from corerl.config.schema import RuntimeConfig
from corerl.errors import ConfigError
from corerl.registry.runtimes import Role

if TYPE_CHECKING:
    from corerl.trainer.workers import PolicyWorker, RolloutWorker

W = TypeVar("W")


class LocalRuntime:
    """The worker itself stands for its group; a call is a plain call.

    Raises:
        ConfigError: the config asks for more than one process can use.
    """

    def __init__(self, config: RuntimeConfig) -> None:
        for name, asked in (("nnodes", config.nnodes), ("n_gpus_per_node", config.n_gpus_per_node)):
            if asked > 1:
                raise ConfigError(f"runtime.{name}", f"{asked} is more than runtime 'local', one process, can use")
        self._workers = ExitStack()

    def reserve(self, roles: Collection[Role]) -> None:
        for role in roles:
            if role.pool is not None:
                raise ConfigError(
                    f"{role.name}.n_gpus_per_node",
                    "runtime 'local' is one process, with no GPUs of their own for a role: take runtime 'ray', or 0",
                )

    def spawn(self, role: Role, worker: type[W], *args: Any) -> W:
        spawned = worker(*args)
        close = getattr(spawned, "close", None)
        if close is not None:
            self._workers.callback(close)
        return spawned

    def send_weights(
        self, actor: "PolicyWorker", rollout: "RolloutWorker", version: int, *, verify: bool = False
    ) -> None:
        rollout.update_weights(actor.weights(), version, verify=verify)

    def close(self) -> None:
        self._workers.close()
