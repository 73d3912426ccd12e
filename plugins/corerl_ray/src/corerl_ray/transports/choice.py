"""Selection of a run's transport."""

from typing import Protocol

from corerl.errors import ConfigError
from corerl.registry import load_object
from corerl_ray.calls import Member
from corerl_ray.group import Group
from corerl_ray.options import RayOptions
from corerl_ray.pools import Places
from corerl_ray.transports.broadcast import Broadcast
from corerl_ray.transports.exchange import Exchange
from corerl_ray.transports.ipc import Ipc
from corerl_ray.transports.object_store import ObjectStore

KEY = "runtime.options.weights_transport"

NAMES = ("auto", "object_store", "broadcast", "exchange", "ipc", "sharded")


class Transport(Protocol):
    """Sends weights between two groups; one object serves a run."""

    def send(self, readers: tuple[Member, ...], version: int, *, verify: bool) -> None:
        """Give the actor's weights to these rollout workers.

        Raises:
            RunError: a worker failed, or a tensor was changed on the way.
        """
        ...


class TransportFactory(Protocol):
    """Makes a transport of another kind, such as RDMA or files: ``weights_transport=module:function``.

    A transport runs its steps in the workers by ``member.host.apply.remote(function, ...)``, a call of Ray, where
    ``function(host, ...)`` reads ``host.worker.weights()`` or ``sharded_weights()`` in the actor's ranks, and calls
    ``host.worker.update_weights`` in rollout workers; ``group.waiter.wait`` waits for calls with a deadline.
    """

    def __call__(self, options: RayOptions, actor: Group, rollout: Group) -> Transport: ...


def name_of(options: RayOptions, places: Places, rollout_places: Places) -> str:
    """The transport named by ``weights_transport``, or one that suits the places.

    Raises:
        ConfigError: there is none of this name, or the places do not allow it.
    """
    shared = places is rollout_places
    gpus = bool(places.gpus_per_node and rollout_places.gpus_per_node)
    name = options.weights_transport
    if ":" not in name and name not in NAMES:
        raise ConfigError(KEY, f"is '{name}': one of {', '.join(NAMES)}, or module:function of another transport")
    if name in ("ipc", "sharded") and not shared:
        raise ConfigError(
            KEY, f"{name} needs rollout workers in the actor's places; here they have a pool of their own"
        )
    if name in ("broadcast", "exchange") and shared and gpus:
        raise ConfigError(
            KEY, f"{name} (NCCL) cannot join two workers on one GPU, and the roles share their GPUs: use ipc"
        )
    if name != "auto":
        return name
    if not gpus:
        return "object_store"
    return "ipc" if shared else "broadcast"


def make(name: str, options: RayOptions, actor: Group, rollout: Group) -> Transport:
    """The transport of this name; it uses two buckets at a time."""
    if ":" in name:
        factory: TransportFactory = _imported(name)
        return factory(options, actor, rollout)
    bucket_bytes = options.weights_bucket_mb * 2**20 // 2
    if name in ("ipc", "sharded"):
        return Ipc(actor, rollout, bucket_bytes, in_pieces=name == "sharded")
    if name == "broadcast":
        return Broadcast(actor, rollout, bucket_bytes)
    if name == "exchange":
        return Exchange(actor, rollout, bucket_bytes)
    return ObjectStore(actor, rollout, bucket_bytes)


def _imported(reference: str) -> TransportFactory:
    try:
        factory: TransportFactory = load_object(reference)
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise ConfigError(KEY, f"is {reference}, which cannot be imported: {error}") from error
    return factory
