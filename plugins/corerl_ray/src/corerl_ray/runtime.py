"""Runtime ``ray``: every worker is a process; roles share a pool of places, or have separate pools."""

import contextlib
import dataclasses
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ray
import torch
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.dispatch import Future
from corerl.contracts.runtimes import Role
from corerl.errors import ConfigError, CoreRLError, DeadlineError, EngineDeadError, RunError, WorkerDiedError
from corerl.models import cpu_threads
from corerl.terminal import say
from corerl_ray import placed, tensors
from corerl_ray.calls import POLL, Call, Member, Wait, Waiter
from corerl_ray.cluster import connect, end_processes
from corerl_ray.ends import exit_cause
from corerl_ray.environment import at_start, carried, of_rank, secrets
from corerl_ray.group import Group, SharedGpus
from corerl_ray.host import CONTROL, THREADS, Failure, ProcessFacts, WorkerHost
from corerl_ray.nodes import OtherNode, Parts
from corerl_ray.options import RayOptions
from corerl_ray.pools import FRACTION, Places, Pools
from corerl_ray.relay import RELAY_THREADS, Relay, Relays, divided
from corerl_ray.signs import Signs
from corerl_ray.spread import Loads, as_one
from corerl_ray.transports.choice import Transport, make, name_of

if TYPE_CHECKING:
    from corerl.contracts.workers import WeightSource, WeightTarget

W = TypeVar("W")

REPLICAS = "rollout"
"""the role whose workers are replicas: each can be lost without ending the run"""

CLOSING = 30.0
CLOSING_AFTER_FAILURE = 3.0
ENDING = 10.0
"""seconds in which workers killed by Ray must have ended"""


class RayRuntime:
    """Starts the workers of every role: one for each GPU, or ``runtime.options.workers`` without GPUs, in shared
    places.

    The rollout role may have a separate pool, and several GPUs for each worker. Its processes take calls from several
    threads at a time, so that weights, abort and sleep reach a generating worker; all other processes run one call at a
    time.
    """

    def __init__(self, config: RuntimeConfig, options: RayOptions) -> None:
        self.config, self.options = config, options
        self._threads = torch.get_num_threads()
        self.cluster = connect(options)
        try:
            tensors.register()
            self.pools = Pools(config, options)
            placed.offer(self.pools.named, options.environment)
        except BaseException:
            self.cluster.close()
            raise
        self.groups: list[Group] = []
        self._transport: Transport | None = None
        self._shared_gpus = SharedGpus()
        node = ray.get_runtime_context().get_node_id()
        self.waiter = Waiter(node, self._kill, Signs(node, options.hang_timeout), self.cluster.health)
        self._closed = False
        self._watching = threading.RLock()

    def reserve(self, roles: Collection[Role]) -> None:
        names = [role.name for role in roles]
        for name in self.options.ranks:
            if name not in names:
                raise ConfigError(f"runtime.options.ranks.{name}", f"this run has {', '.join(names)}")
        self.pools.reserve(roles)
        name_of(self.options, self.pools.of("actor"), self.pools.of(REPLICAS))

    def starts_together(self, role: Role) -> bool:
        """All but an engine on the GPUs of training that takes a share of the memory that it finds free."""
        shares_gpus = self.pools.of(role.name) is self.pools.of("actor") and bool(self.config.n_gpus_per_node)
        return role.name != REPLICAS or role.starts_beside or not shares_gpus

    def spawn(self, role: Role, worker: type[W], *args: Any) -> W:
        self.pools.reserve([role])
        places = self.pools.of(role.name)
        step = places.per_worker(role)
        size = len(places) // step
        if size > 1 and not role.distributed and role.workers is None:
            raise ConfigError(
                role.key,
                f"'{role.part}' runs in one process, and runtime 'ray' would start {size} {role.name} workers: use a "
                "distributed part such as fsdp, or one worker",
            )
        deadline = time.monotonic() + self.options.start_timeout
        is_concurrent = role.name == REPLICAS or (role.workers is not None and role.distributed)
        devices = places.devices(self.options.start_timeout) if step > 1 else []
        seats = [Seat(places, rank * step, tuple(devices[rank * step :][:step])) for rank in range(size)]
        members = [
            Member(role.name, rank, size, self.start(places, seat.first, is_concurrent))
            for rank, seat in enumerate(seats)
        ]
        self._watch(members)
        starting = Wait(self.waiter, deadline, f"starting the {role.name} workers (runtime.options.start_timeout)")
        facts = starting.all([Call(member, member.host.facts.remote()) for member in members])
        started = [dataclasses.replace(member, facts=own) for member, own in zip(members, facts, strict=True)]
        self._watch(started)
        seen: Counter[str] = Counter()
        calls = []
        for member, own in zip(started, facts, strict=True):
            # Ray shows a worker only its own GPU, as device 0
            local_rank = 0 if places.gpus_per_node else seen[own.node]
            seen[own.node] += 1
            seat = seats[member.rank]
            environment = self.environment_of(member, local_rank, facts[0], seat)
            calls.append(Call(member, member.host.build.remote(environment, worker, args, self.others(seat))))
        shares = starting.all(calls)
        is_large = role.workers is None and not is_concurrent and size >= self.options.relay_ranks
        relays = self.start_relays(started, starting) if is_large else ()
        loads = Loads.of(size, self.options.rollout_samples if role.name == REPLICAS else sys.maxsize)
        group = Group(
            role.name,
            worker,
            tuple(started),
            tuple(shares),
            self.waiter,
            self.options.timeout if role.timeout is None else role.timeout,
            loads,
            is_concurrent,
            self._shared_gpus if places.gpus_per_node and not is_concurrent else None,
            Relays(relays),
            takes_weights=role.name == REPLICAS,
        )
        if is_concurrent:
            group.restart_member = Restart(self, role, group, args, seats)
            reports = starting.all([Call(member, member.host.engine_load.remote()) for member in started])
            group.exchange.engines = {rank: load for rank, load in enumerate(reports) if load is not None}
            self.waiter.replicas[role.name] = group.lose
            self.waiter.engines[role.name] = group.set_aside
        self.groups.append(group)
        return cast(W, group)

    def start_relays(self, ranks: Sequence[Member], starting: Wait) -> tuple[Member, ...]:
        """The relays of these workers, each on the node of its first."""
        remote: Any = ray.remote(concurrency_groups=RELAY_THREADS)  # type: ignore[call-overload]
        environment = {**carried(self.options.environment), "OMP_NUM_THREADS": "1"}
        relays = []
        for own in divided(ranks):
            assert own[0].facts is not None
            actor = remote(Relay).options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(own[0].facts.node, soft=False),
                max_restarts=0,
                enable_task_events=False,
                max_concurrency=1,  # calls reach the ranks in the order of the controller's
                **at_start(self.options.environment),
            )
            host = actor.remote(str(Path.cwd()), sys.path, self.options.timeout, environment)
            relays.append(dataclasses.replace(own[0], host=host, facts=None, ranks=own))
        self._watch(relays)
        facts = starting.all([Call(relay, relay.host.facts.remote()) for relay in relays])
        started = tuple(dataclasses.replace(relay, facts=own) for relay, own in zip(relays, facts, strict=True))
        self._watch(started)
        starting.all([Call(relay, relay.host.know.remote([one.host for one in relay.ranks])) for relay in started])
        return started

    def send_weights(
        self, actor: "WeightSource", rollout: "WeightTarget", version: int, *, verify: bool = False
    ) -> None:
        """By ``runtime.options.weights_transport``; the controller touches no weight."""
        sink = cast(Group, rollout)
        if news := sink.take_news():
            raise as_one(list(news.values()))
        self._send(cast(Group, actor), sink, sink.members, version, verify)

    def send_missing_weights(self, actor: "WeightSource", rollout: "WeightTarget", version: int) -> None:
        sink = cast(Group, rollout)
        if newcomers := sink.newcomers():
            self._send(cast(Group, actor), sink, newcomers, version, verify=True)

    def _send(self, source: Group, sink: Group, readers: tuple[Member, ...], version: int, verify: bool) -> None:
        if self._transport is None:
            name = name_of(self.options, self.pools.of(source.role), self.pools.of(sink.role))
            self._transport = make(name, self.options, source, sink)
        newcomers = [member for member in sink.newcomers() if member in readers]
        try:
            self._transport.send(readers, version, verify=verify)
        except EngineDeadError:
            sink.take_news()  # it is reported
            raise
        sink.have_weights(readers)
        for member in newcomers:
            say(f"{member} takes requests again, with the weights of version {version}")

    def close(self) -> None:
        if self._closed:
            return
        with self._watching:
            self._closed = self.waiter.closing = True
        has_named_logs = self.waiter.has_named_logs  # later errors are of workers that are killed here
        patience = CLOSING_AFTER_FAILURE if self.waiter.failed else CLOSING
        closing: list[Future] = []
        is_lost = bool(self.cluster.health.look(patiently=False))  # a stopped GCS would block each of Ray's calls
        for group in self.groups if not is_lost else []:
            if hasattr(group, "close") and self.waiter.members:
                closing.append(dataclasses.replace(group, timeout=patience).close.submit())
        for pending in closing:
            with contextlib.suppress(CoreRLError):  # all are killed below, and the run's own error is more useful
                pending.result()
        placed.offer({})
        self._kill()
        for group in self.groups:  # which may be starting a worker that nobody else knows of
            if group.reviving.acquire(timeout=CLOSING_AFTER_FAILURE):
                group.reviving.release()
        if not is_lost:
            self.pools.close()
        self.cluster.close(keep_logs=has_named_logs)

    def _watch(self, members: Sequence[Member]) -> None:
        """Also those of which more is known than before."""
        hosts = {member.host for member in members}
        with self._watching:
            self.waiter.members = [other for other in self.waiter.members if other.host not in hosts] + [*members]
            if self._closed:
                self._kill()
                raise RunError("the runtime is closed")

    def environment_of(self, member: Member, local_rank: int, first: ProcessFacts, seat: "Seat") -> dict[str, str]:
        """Variables that a worker gets after its start; ``first`` is rank 0."""
        environment = secrets(self.options.environment)
        environment |= of_rank(member.rank, local_rank, member.world_size, first.address, first.port)
        return environment | seat.visible(0)

    def others(self, seat: "Seat") -> list[OtherNode]:
        """The other nodes of a worker; none but for an engine over several."""
        each = seat.places.gpus_per_node
        if len(seat.devices) <= each:
            return []
        alive = ray.nodes()  # type: ignore[no-untyped-call]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in alive}
        options = {"num_gpus": FRACTION, **at_start(self.options.environment)}
        own, parts = secrets(self.options.environment), Parts(self.options.hang_timeout)
        return [
            OtherNode(
                addresses[seat.places.nodes[seat.first + start]],
                seat.places.strategy(seat.first + start),
                options,
                carried(self.options.environment),
                own | seat.visible(start),
                self.options.start_timeout,
                self.options.timeout,
                parts,
            )
            for start in range(each, len(seat.devices), each)
        ]

    def start(self, places: Places, place: int, is_concurrent: bool) -> Any:
        """Start the process of one worker of a role, in a place."""
        device = "cuda" if places.gpus_per_node else "cpu"
        threads = cpu_threads(self._threads // places.most_on_a_node, device)
        environment = {**carried(self.options.environment), "OMP_NUM_THREADS": str(threads)}
        remote: Any = ray.remote(concurrency_groups=THREADS) if is_concurrent else ray.remote  # type: ignore[call-overload]
        host = remote(WorkerHost)
        return host.options(
            num_cpus=FRACTION,
            num_gpus=FRACTION if places.gpus_per_node else 0,
            scheduling_strategy=places.strategy(place),
            max_restarts=0,
            enable_task_events=False,  # they would accumulate in the GCS
            max_concurrency=CONTROL if is_concurrent else 1,
            **at_start(self.options.environment),
        ).remote(str(Path.cwd()), sys.path, self.options.timeout, environment)

    def _kill(self) -> None:
        """Kill all workers at once."""
        members, self.waiter.members = self.waiter.members, []
        is_lost = bool(self.cluster.health.look(patiently=False))
        for member in members if not is_lost else []:
            ray.kill(member.host, no_restart=True)
        here = [member.facts for member in members if member.facts and member.facts.node == self.waiter.node]
        end_processes(tuple(facts.pid for facts in here), patience=0.0 if is_lost else ENDING)


@dataclasses.dataclass(frozen=True)
class Seat:
    """The place of a worker: the first of its places, and ``CUDA_VISIBLE_DEVICES`` of all of several."""

    places: Places
    first: int
    devices: tuple[str, ...]

    def visible(self, start: int) -> dict[str, str]:
        """The variable for a process on the node of the place ``start``: the devices of this node."""
        own = self.devices[start:][: self.places.gpus_per_node]
        return {"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {}

    def is_there(self) -> bool:
        """Whether its machines are, as far as Ray knows."""
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        own = self.places.nodes[self.first :][: max(1, len(self.devices))]
        return {node["NodeID"] for node in nodes if node["Alive"]}.issuperset(own)


@dataclasses.dataclass
class Restart:
    """Starts a replica of a group again: in its places if their machine exists, else on a machine with room."""

    runtime: RayRuntime
    role: Role
    group: Group
    args: Sequence[Any]
    seats: list[Seat]

    def __call__(self, rank: int) -> Member | None:
        """The restarted worker; None if there is no room, or it does not start."""
        member = self.group.latest[rank]
        seat = self._seat(rank)
        if seat is None:
            say(f"{member}: no machine has room to start it again; the run continues with {self._left()}")
            return None
        host = self.runtime.start(seat.places, seat.first, is_concurrent=True)
        try:
            started = self._build(dataclasses.replace(member, host=host, facts=None), seat)
        except (RayError, CoreRLError) as error:
            ray.kill(host, no_restart=True)
            if self.runtime.waiter.failure is error:
                raise
            if self.runtime.waiter.closing:
                return None
            if not seat.is_there():  # Ray notices the death of a machine later than that of its workers
                return self(rank)
            is_dead = isinstance(error, RayActorError | WorkerDiedError)
            if is_dead and self.group.dies_at_start(member, exit_cause(str(error))):
                return None
            why = str(error).strip().splitlines()[-1]
            say(f"{member} could not be started again ({why}); the run continues with {self._left()}")
            return None
        self.runtime.waiter.members = [*self.runtime.waiter.members, started]
        self.seats[rank] = seat
        return started

    def _left(self) -> str:
        return f"{len(self.group.members)} of {len(self.seats)}"

    def _seat(self, rank: int) -> Seat | None:
        seat, size = self.seats[rank], self.seats[rank].places.per_worker(self.role)
        if seat.is_there():
            return seat
        places = self.runtime.pools.elsewhere(seat.places, size)
        if places is None:
            return None
        return Seat(places, 0, tuple(places.devices(self.runtime.options.start_timeout)) if size > 1 else ())

    def _build(self, member: Member, seat: Seat) -> Member:
        deadline = time.monotonic() + self.runtime.options.start_timeout
        facts: ProcessFacts = self._result(member.host.facts.remote(), deadline)
        local_rank = 0
        if not seat.places.gpus_per_node:
            local_rank = sum(other.facts.node == facts.node for other in self.group.members if other.facts)
        environment = self.runtime.environment_of(member, local_rank, facts, seat)
        building = member.host.build.remote(environment, self.group.worker, self.args, self.runtime.others(seat))
        self._result(building, deadline, facts)
        return dataclasses.replace(member, facts=facts)

    def _result(self, reference: "ray.ObjectRef[Any]", deadline: float, facts: ProcessFacts | None = None) -> Any:
        """The result of a worker that is not in a group yet; the other workers are watched during the wait.

        Raises:
            WorkerDiedError: the worker's process gives no sign of life, and is killed.
        """
        waiter, options = self.runtime.waiter, self.runtime.options
        signs = Signs(waiter.node, options.hang_timeout)
        while not ray.wait([reference], timeout=POLL)[0]:
            if waiter.closing:
                raise RunError("the run ends")
            waiter.look(None)
            if waiter.failure is not None:
                raise waiter.failure
            if facts is not None and signs.silent([(facts.node, facts.asked)]):
                waiter.end(facts)
                raise WorkerDiedError(f"it gave no sign of life for {options.hang_timeout:.0f} s")
            if time.monotonic() > deadline:
                raise DeadlineError(f"it took longer than {options.start_timeout:g} s")
        value = ray.get(reference)
        if isinstance(value, Failure):
            raise value.error("it")
        return value
