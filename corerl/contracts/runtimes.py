"""Runtimes: the places of workers, and calls to them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from corerl.contracts.config import RuntimeConfig
    from corerl.contracts.workers import WeightSource, WeightTarget
    from corerl.errors import EngineDeadError

W = TypeVar("W")


@dataclass(frozen=True)
class Pool:
    """Machines, and GPUs of each."""

    nnodes: int
    n_gpus_per_node: int


@dataclass(frozen=True)
class Role:
    """The purpose of one group of workers.

    Attributes:
        name: ``actor``, ``critic``, ``ref``, ``rollout`` or ``episodes``.
        key: config key of the part that the workers run.
        part: that part's name.
        distributed: several workers can share the work. A fact of strategies; every worker of a rollout backend is a
            replica.
        workers: so many of them, without GPUs, on any machine, each a replica if ``distributed``; None: the runtime
            chooses.
        timeout: deadline of a call in seconds; a worker that misses it is ended. None: the runtime's.
        starts_beside: the workers may start while those of other roles do, and may still start when constructed
            (:class:`corerl.contracts.workers.StartingWorker`).
        gpus: of one worker; more than 1 for a rollout backend under tensor parallelism.
        pool: machines and GPUs of its own; None: shared with the other roles.
    """

    name: str
    key: str
    part: str
    distributed: bool
    gpus: int = 1
    pool: Pool | None = None
    starts_beside: bool = False
    workers: int | None = None
    timeout: float | None = None


class Runtime(Protocol):
    """Places workers."""

    def reserve(self, roles: Collection[Role]) -> None:
        """Take the places of these roles, before the first spawn.

        Raises:
            ConfigError: there are too few for all, or a role asks for something that the runtime lacks.
        """
        ...

    def spawn(self, role: Role, worker: type[W], *args: Any) -> W:
        """Start the workers of one role, each built as ``worker(*args)``; the runtime chooses their number.

        Returns an object with the worker's methods, used like a single worker: whole batches in, whole batches out. A
        call is dispatched by the declaration of the method (:mod:`corerl.contracts.dispatch`).

        The workers have started, except a :class:`corerl.contracts.workers.StartingWorker` of a role that
        ``starts_beside``: its methods show and await the end of its start.

        Each of several workers has ``RANK`` and ``WORLD_SIZE`` in its environment; a
        :class:`corerl.contracts.workers.PlacedWorker` returns its share of split work, others are replicas.

        Raises:
            ConfigError: ``role`` is not distributed, and there would be several workers.
        """
        ...

    def send_weights(
        self, actor: "WeightSource", rollout: "WeightTarget", version: int, *, verify: bool = False
    ) -> None:
        """Send the policy's weights to all rollout workers, as ``version``; they may be generating.

        Args:
            actor, rollout: results of :meth:`spawn`.
            verify: compare a digest of every tensor at both ends.

        Raises:
            RunError: names a changed or missing tensor.
        """
        ...

    def close(self) -> None:
        """End all workers, also after a failure, each :class:`corerl.contracts.workers.ClosingWorker` by its method."""
        ...


@runtime_checkable
class Replicas(Protocol):
    """Replicas, as a runtime may return them, that go on without one whose engine or process has ended."""

    def on_loss(self, listener: "Callable[[EngineDeadError], None]") -> None:
        """Call ``listener`` once for each that ends while another can generate, from any thread: it must not wait.

        The errors of calls that meet the same end are marked ``is_handled``. Calls under way continue with the others.
        """
        ...

    def restart_lost(self) -> None:
        """Start those again, and wait; rollout workers take no requests before they have the policy's weights."""
        ...


@runtime_checkable
class CatchingUp(Protocol):
    """A runtime that can send weights to rollout workers that were started again, and to no other."""

    def send_missing_weights(self, actor: "WeightSource", rollout: "WeightTarget", version: int) -> None:
        """As :meth:`Runtime.send_weights`, verified, to those that have none of the policy's; they take requests."""
        ...


@runtime_checkable
class StartsTogether(Protocol):
    """A runtime whose ``spawn`` may be called from several threads at a time; ``close`` ends those under way."""

    def starts_together(self, role: Role) -> bool:
        """Whether the role may start while others do; others are started after those, one after the other."""
        ...


@runtime_checkable
class LocatedOptions(Protocol):
    """Options of a runtime with the fact that all workers are on this machine; without options, they are."""

    @property
    def works_here(self) -> bool: ...


class RuntimeFactory(Protocol):
    """Starts a runtime."""

    def __call__(self, config: "RuntimeConfig") -> Runtime: ...
