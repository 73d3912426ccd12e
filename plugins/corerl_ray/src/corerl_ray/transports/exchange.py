"""From the actor's shards to the ranks of engines on GPUs of their own: each needed element is sent once.

As :mod:`corerl_ray.transports.sharded`, with one process group of the actor's ranks and all engines' ranks: NCCL on
GPUs, gloo without. A rollout worker is in the group once for each rank of its engine, by a thread, on the GPU of this
rank, where the rank reads the memory by CUDA IPC. If the engine covers several nodes, the process that has started the
engine's follower on another node is in the group for the ranks there; the rollout worker asks it for each round.

Both sides have two buffers, so that a round is cast while the previous one travels, and the next one is requested
before the engine has loaded it. On GPUs the actor's processes wait for no round, and a rollout worker waits once for
each.
"""

import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.errors import ConfigError, DeadlineError, EngineDeadError
from corerl_ray.calls import Call, Member
from corerl_ray.group import Group
from corerl_ray.host import WorkerHost
from corerl_ray.transports.broadcast import LEFT, WHAT, Broken, BrokenError, Channel, group_of, left_by_others, settle
from corerl_ray.transports.link import Link, own_device
from corerl_ray.transports.sharded import HALVES, Asking, Filling, Sends, places_in, planned, received, sends
from corerl_ray.transports.shared_memory import Shared
from corerl_torch.weights.pieces import BackendWorker, Round, ShardedBackend
from corerl_torch.weights.plan import Plan

T = TypeVar("T")

KEY = "runtime.options.weights_transport"

BUFFERS = 2
"""of an actor worker"""


@dataclass
class Exchange:
    """The process group is made at the first transfer, and kept until a rollout worker is lost or added, or an engine
    starts again.

    Attributes:
        joined: the rollout workers in the group, and the number of starts of lost engines before.
        plan: of their engines.
    """

    actor: Group
    rollout: Group
    bucket_bytes: int
    joined: tuple[tuple[Member, ...], int] = (), 0
    plan: Plan | None = None

    def send(self, readers: tuple[Member, ...], version: int, *, verify: bool) -> None:
        deadline = time.monotonic() + self.actor.timeout
        now = readers, self.rollout.starts
        if self.joined != now:
            self.joined = (), 0
            self._join(readers, deadline)
            self.joined = now
        calls = self.actor.apply(send, verify)
        calls += [Call(member, member.host.apply.remote(receive, version, verify)) for member in readers]
        try:
            settle(calls, self.actor.waiter, lambda: filter(self.rollout.has, readers), leave, deadline)
        except BaseException:
            self.joined = (), 0
            raise

    def _join(self, readers: tuple[Member, ...], deadline: float) -> None:
        actors = self.actor.members
        assert actors[0].facts is not None
        ask = Asking(self.actor.waiter, deadline, WHAT)
        self.plan = make(ask, actors, readers, self.bucket_bytes, actors[0].facts.address)


def make(ask: Any, actors: Sequence[Any], readers: Sequence[Any], bucket_bytes: int, address: str) -> Plan:
    """Make the plan and the process group.

    Args:
        ask: as :class:`corerl_ray.transports.sharded.Asking`.
        address: of the machine of the first actor worker.

    Raises:
        ConfigError: the strategy or the backend has no pieces.
    """
    found = planned(ask, actors, readers, bucket_bytes, apart=True)
    if found is None:
        raise ConfigError(KEY, "exchange needs a strategy and a backend that send pieces: set it to broadcast")
    made, first = found.plan, len(actors)
    ask(actors, take_part, [[sends(made, rank)] for rank in range(first)])
    parts = [[sends(made, first + each) for each in own] for own in found.receivers]
    ask(readers, take_part, parts)
    plans = [[received(made, each, None) for each in own] for own in found.receivers]
    ask(readers, expect, plans, [[places_in(made, each) for each in own] for own in found.receivers])
    (port,) = ask(actors[:1], listen, [address])
    members = [*actors, *readers]
    ranks = [*([rank] for rank in range(first)), *([first + each for each in own] for own in found.receivers)]
    size = first + len(made.ports)
    ask(members, join, [address] * len(members), [port] * len(members), ranks, [size] * len(members))
    return made


@dataclass
class End:
    """One rank of the group, with its part in the plan, and the memory that an engine's rank reads."""

    filling: Filling
    channel: Channel | None = None
    shared: Shared | None = None
    free: threading.Semaphore = field(default_factory=threading.Semaphore)
    arriving: "queue.SimpleQueue[Callable[[], None] | None]" = field(default_factory=queue.SimpleQueue)
    """of each requested round, a function that waits until it is here; None: there will be no other"""

    def start(self, into: Tensor, given: Tensor, sizes_into: Sequence[int], sizes: Sequence[int]) -> Any:
        """Start one all-to-all; :meth:`Channel.wait` for the result.

        Raises:
            BrokenError: another process of the group has ended.
        """
        assert self.channel is not None
        if self.channel.broken:
            raise BrokenError
        with self.channel.breaking():
            options = dist.AllToAllOptions()
            return self.channel.group.alltoall_base(into, given, list(sizes_into), list(sizes), options)

    def receive(self, timeout: float) -> None:
        """Request the rounds of an update, each as soon as a half of the memory is free."""
        assert self.shared is not None and self.channel is not None
        is_cuda = self.filling.device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(self.filling.device)
        try:
            for number, (given, taken, _) in enumerate(self.filling.own.rounds):
                if not self.free.acquire(timeout=timeout):
                    raise DeadlineError(f"a round of weights was not loaded within {timeout:g} s")
                into = self.shared.data[self.filling.own.half * (number % HALVES) :][: sum(taken)]
                work = self.start(into, into.new_empty(0), taken, given)
                if is_cuda:
                    self.channel.wait(work)  # the stream alone
                    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    event.record()
                    self.arriving.put(event.synchronize)
                else:
                    self.arriving.put(functools.partial(self.channel.wait, work))
        except BaseException:
            self.arriving.put(None)
            raise

    def arrived(self, timeout: float) -> bool:
        """Wait for the next round; False: the group is broken.

        Raises:
            DeadlineError: it was not even requested.
        """
        try:
            wait = self.arriving.get(timeout=timeout)
        except queue.Empty:
            raise DeadlineError(f"a round of weights did not arrive within {timeout:g} s") from None
        if wait is None:
            return False
        try:
            wait()
        except BrokenError:
            return False
        return True


@dataclass
class Ends:
    """The ends of the group in a process: in a rollout worker, one for each rank of its engine on this node.

    Attributes:
        places: of each rank of the engine, on all nodes, and round, (offset, bytes) in the memory.
        link: of the first actor worker, which listens.
        lost: another node of the engine does not answer.
        receiving: :meth:`End.receive` of each end.
    """

    ends: Sequence[End]
    places: Sequence[Sequence[tuple[int, int]]] = ()
    link: Link | None = None
    lost: EngineDeadError | None = None
    receiving: Sequence[Future[None]] = ()

    @property
    def broken(self) -> str | None:
        return next((end.channel.broken for end in self.ends if end.channel and end.channel.broken), None)


def by_node(host: WorkerHost, values: Sequence[T]) -> list[Sequence[T]]:
    """The values of the engine's ranks on this node, and of those on each other one."""
    each = len(values) // (1 + len(host.others))
    return [values[start : start + each] for start in range(0, len(values), each)]


def ask_others(host: WorkerHost, function: Callable[..., T], *args: Sequence[Any]) -> Callable[[], list[T]]:
    """Begin ``function(host, *own)`` on the other nodes of the engine; each of ``args`` has a value for each.

    The returned wait for the results raises:
        EngineDeadError: a node does not answer; the engine is ended, whose processes may go on.
    """
    given = zip(*args, strict=True) if args else [()] * len(host.others)
    waits = [node.apply(function, *own) for node, own in zip(host.others, given, strict=True)]

    def wait() -> list[T]:
        try:
            return [each() for each in waits]
        except EngineDeadError:
            cast(BackendWorker, host.worker).on_backend(lambda backend: backend.close())
            raise

    return wait


def take_part(host: WorkerHost, parts: Sequence[Sends]) -> None:
    """In every process: the parts of its ends; an earlier group is left."""
    if isinstance(host.transport, Ends):
        for end in host.transport.ends:
            if end.channel is not None:
                end.channel.leave()
            if end.shared is not None:
                end.shared.close()
    here, *elsewhere = by_node(host, parts)
    own = own_device()
    devices = [own if own.type == "cpu" else torch.device("cuda", rank) for rank in range(len(here))]
    host.transport = Ends([End(Filling(*each, BUFFERS)) for each in zip(here, devices, strict=True)])
    ask_others(host, take_part, elsewhere)()


def expect(host: WorkerHost, plans: Sequence[dict[str, Any]], places: Sequence[Sequence[tuple[int, int]]]) -> None:
    """In a rollout worker: memory for each rank of its engine, which gets the plan."""
    host.transport.places = places
    for plan, source in zip(plans, memory(host), strict=True):
        plan["source"] = source
    worker = cast(BackendWorker, host.worker)
    worker.on_backend(lambda backend: cast(ShardedBackend, backend).expect(plans))


def memory(host: WorkerHost) -> list[dict[str, Any]]:
    """Where an engine's ranks are: memory for each, as the rank opens it."""
    for end in host.transport.ends:
        end.shared = Shared.new(HALVES * max(1, end.filling.own.half), end.filling.device)
    own = [end.shared.source for end in host.transport.ends]
    return own + [source for of_node in ask_others(host, memory)() for source in of_node]


def listen(host: WorkerHost, address: str) -> int:
    """In the actor's first rank: open a store; returns its port."""
    host.transport.link = Link.listen(address, host.timeout)
    return int(host.transport.link.port)


def join(host: WorkerHost, address: str, port: int, ranks: Sequence[int], size: int) -> None:
    """In every process: join the group with all ends at the same time."""

    def enter(rank: int, end: End) -> None:
        if end.filling.device.type == "cuda":
            torch.cuda.set_device(end.filling.device)
        link = host.transport.link or Link.connect(address, port, host.timeout)
        end.channel = Channel(link, group_of(link, end.filling.device, rank, size, host), end.filling.device)

    here, *elsewhere = by_node(host, ranks)
    there = len(elsewhere)
    entered = ask_others(host, join, [address] * there, [port] * there, elsewhere, [size] * there)
    with ThreadPoolExecutor(len(here)) as threads:
        for entering in [threads.submit(enter, *own) for own in zip(here, host.transport.ends, strict=True)]:
            entering.result()
    entered()


def send(host: WorkerHost, verify: bool) -> Broken | None:
    """In every actor worker."""
    (end,) = host.transport.ends
    assert end.channel is not None
    under_way: deque[Any] = deque()
    try:
        with left_by_others(end.channel):
            for given, taken, buffer in end.filling.rounds(host, verify):
                under_way.append(end.start(buffer.new_empty(0), buffer, taken, given))
                if len(under_way) == end.filling.buffers:  # the next round fills the buffer of the first
                    end.channel.wait(under_way.popleft())
            for work in under_way:
                end.channel.wait(work)
    except BrokenError:
        end.channel.leave()
    return Broken(end.channel.broken) if end.channel.broken else None


def receive(host: WorkerHost, version: int, verify: bool) -> Broken | None:
    """In a rollout worker: receive, and load.

    Raises:
        EngineDeadError: another node of the engine does not answer; the group is left.
    """
    own: Ends = host.transport
    begin(host)
    coming = rounds(host)
    worker = cast(BackendWorker, host.worker)
    try:
        worker.on_backend(lambda backend: cast(ShardedBackend, backend).update_pieces(coming, version, verify=verify))
    except Exception:
        if not own.broken and own.lost is None:  # otherwise missing weights are expected
            raise
    finally:
        for _ in range(HALVES):  # after a failure, what had arrived
            done(host)
        for each in coming:
            each.done()
        finish(host)
    if own.lost is not None:
        raise own.lost
    return Broken(own.broken) if own.broken else None


def begin(host: WorkerHost) -> None:
    """Where an engine's ranks are: begin to receive."""
    own: Ends = host.transport
    own.lost = None
    try:
        ask_others(host, begin)()
    except EngineDeadError as error:  # the first round will not arrive
        own.lost = error
    for end in own.ends:
        end.free, end.arriving = threading.Semaphore(HALVES), queue.SimpleQueue()
    threads = ThreadPoolExecutor(len(own.ends))
    own.receiving = [threads.submit(end.receive, host.timeout) for end in own.ends]
    threads.shutdown(wait=False)


def rounds(host: WorkerHost) -> Iterator[Round]:
    """In a rollout worker: as they arrive; those of a broken group end early, and everybody leaves it."""
    places = host.transport.places
    for number in range(len(places[0])):
        if not arrived(host):
            leave(host)
            return
        yield Round(number, [own[number] for own in places], functools.partial(done, host))


def arrived(host: WorkerHost) -> bool:
    """Where an engine's ranks are: wait for the next round of all; False: the group is broken."""
    own: Ends = host.transport
    try:
        return all(ask_others(host, arrived)()) and all(end.arrived(host.timeout) for end in own.ends)
    except EngineDeadError as error:
        own.lost = error
        return False


def done(host: WorkerHost) -> None:
    """Where an engine's ranks are: free the first round that is not."""
    for end in host.transport.ends:
        end.free.release()
    with suppress(EngineDeadError):  # the next round will not arrive
        ask_others(host, done)()


def finish(host: WorkerHost) -> None:
    """Where an engine's ranks are: wait until nothing is received any more."""
    own: Ends = host.transport
    with suppress(EngineDeadError):
        ask_others(host, finish)()
    for end in own.ends:
        if end.channel is not None and end.channel.broken:
            end.free.release()  # one that still requests rounds gets the same error
    for receiving in own.receiving:
        with suppress(BrokenError):
            receiving.result()


def leave(host: WorkerHost) -> None:
    """Where an engine's ranks are, possibly during a receive: abort it, and so the actor's sends."""
    there = ask_others(host, leave)
    for end in host.transport.ends:
        with suppress(RuntimeError):  # the process with the store has ended
            end.channel.link.store.set(LEFT, "")
        end.channel.leave()
    with suppress(EngineDeadError):
        there()
