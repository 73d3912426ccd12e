"""Runtime ``local``: every role is one worker in this process."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.runtimes import Role
from corerl.contracts.surroundings import leave_launch
from corerl.contracts.workers import ClosingWorker, StartingWorker
from corerl.errors import ConfigError

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig
    from corerl.contracts.workers import WeightSource, WeightTarget

W = TypeVar("W")


class LocalRuntime:
    """The worker itself is its group; a call is a plain call.

    Raises:
        ConfigError: the config asks for more than one process can use.
    """

    def __init__(self, config: RuntimeConfig) -> None:
        for error in _refused(config):
            raise error
        leave_launch()
        self._workers = ExitStack()

    def reserve(self, roles: Collection[Role]) -> None:
        for role in roles:
            if role.pool is not None:
                raise _no_pool(role.name)
            if role.workers is not None:
                raise _no_workers(role.key)

    @staticmethod
    def examine(key: str, config: "TrainConfig", machine: object) -> Iterator[ConfigError]:
        """For `corerl check`: every error of the config."""
        yield from _refused(config.runtime)
        rollout = config.rollout
        if rollout.n_gpus_per_node:
            yield _no_pool("rollout")
        if rollout.num_workers:
            yield _no_workers("rollout.num_workers")

    def spawn(self, role: Role, worker: type[W], *args: Any) -> W:
        spawned = worker(*args)
        if isinstance(spawned, ClosingWorker):
            self._workers.callback(spawned.close)
        if isinstance(spawned, StartingWorker) and not role.starts_beside:
            spawned.started()
        return spawned

    def send_weights(
        self, actor: "WeightSource", rollout: "WeightTarget", version: int, *, verify: bool = False
    ) -> None:
        rollout.update_weights(actor.weights(), version, verify=verify)

    def close(self) -> None:
        self._workers.close()


def _refused(config: RuntimeConfig) -> Iterator[ConfigError]:
    for name, asked in (("nnodes", config.nnodes), ("n_gpus_per_node", config.n_gpus_per_node)):
        if asked > 1:
            yield ConfigError(f"runtime.{name}", f"{asked} is more than runtime 'local', one process, can use")


def _no_pool(role: str) -> ConfigError:
    return ConfigError(
        f"{role}.n_gpus_per_node",
        "runtime 'local' is one process without separate GPUs for a role: use runtime 'ray', or 0",
    )


def _no_workers(key: str) -> ConfigError:
    return ConfigError(key, "runtime 'local' is one process: use runtime 'ray' (runtime.name=ray), or 0")
